// kfp-shape stands in for the programs that Argo and KFP put around a component's command. What each imitates, and how
// that was observed, is told in ../../kfp_pod.py.
//
//	kfp-shape copy DIR                     init container: puts this program into DIR
//	kfp-shape emissary -- COMMAND...       process 1 of main
//	kfp-shape launcher JSON -- COMMAND...  child of the emissary; JSON is the ExecutorInput
//	kfp-shape wait                         the wait container: ends after main, tells its result
//	kfp-shape kill SIGNAL PID              what Argo executes in main to signal process 1
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	shared   = "/var/run/argo"
	exitCode = shared + "/ctr/main/exitcode"
	alive    = shared + "/ctr/main/lock"
	result   = shared + "/outputs/executor_output.json"
	look     = time.Second
)

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("no verb"))
	}
	verbs := map[string]func([]string) error{
		"copy": install, "emissary": emissary, "launcher": launcher, "wait": wait, "kill": kill,
	}
	verb, known := verbs[os.Args[1]]
	if !known {
		fail(fmt.Errorf("unknown verb %q", os.Args[1]))
	}
	if err := verb(os.Args[2:]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "kfp-shape:", err)
	os.Exit(1)
}

func install(arguments []string) error {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	for _, folder := range []string{shared + "/ctr/main", shared + "/outputs"} {
		// Main may be another user, and a umask must not keep it out.
		if err := os.MkdirAll(folder, 0o777); err != nil {
			return err
		}
		if err := os.Chmod(folder, 0o777); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(arguments[0], "kfp-shape"), self, 0o755)
}

// emissary starts the command in a process group of its own, hands every signal on to that group, and looks once a
// second whether the command has ended. When it ends itself, as process 1, the kernel kills all that is left.
func emissary(arguments []string) error {
	// Held as long as this process lives, however it ends: the wait container learns by it that main is gone.
	lock, err := os.OpenFile(alive, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	command := exec.Command(arguments[1], arguments[2:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	if err := command.Start(); err != nil {
		return err
	}
	group := command.Process.Pid
	go func() {
		for got := range signals {
			if got != syscall.SIGCHLD && got != syscall.SIGURG {
				_ = syscall.Kill(-group, got.(syscall.Signal))
			}
		}
	}()
	for {
		time.Sleep(look)
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(group, &status, syscall.WNOHANG, nil)
		if err != nil {
			return err
		}
		if pid == group {
			code := status.ExitStatus()
			if status.Signaled() {
				code = 128 + int(status.Signal())
			}
			_ = os.WriteFile(exitCode, []byte(strconv.Itoa(code)), 0o644)
			os.Exit(code)
		}
	}
}

// launcher runs the component's command as its child, in its own process group, with the ExecutorInput in place of the
// placeholder. It has no handler for SIGTERM, so it dies of it at once, and the command's output is a broken pipe then.
func launcher(arguments []string) error {
	input := arguments[0]
	var parsed executorInput
	if err := json.Unmarshal([]byte(input), &parsed); err != nil {
		return fmt.Errorf("executor input: %w", err)
	}
	for _, path := range parsed.places() {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
	}
	words := arguments[2:]
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], "{{$}}", input)
	}
	command := exec.Command(words[0], words[1:]...)
	command.Stdin = os.Stdin
	// Not the file itself: KFP copies what is printed to its log artifact, so there is a pipe, and one end is here.
	command.Stdout, command.Stderr = copied{os.Stdout}, copied{os.Stdout}
	if err := command.Run(); err != nil {
		return fmt.Errorf("failed to execute component: %w", err)
	}
	parsed.warn()
	return parsed.publish()
}

type copied struct{ to io.Writer }

func (c copied) Write(data []byte) (int, error) { return c.to.Write(data) }

type executorInput struct {
	Outputs struct {
		OutputFile string
		Parameters map[string]struct{ OutputFile string }
		Artifacts  map[string]struct {
			Artifacts []struct{ URI string }
		}
	}
}

// places lists files whose folders KFP makes before the command runs.
func (e executorInput) places() []string {
	var found []string
	for _, parameter := range e.Outputs.Parameters {
		found = append(found, parameter.OutputFile)
	}
	for _, list := range e.Outputs.Artifacts {
		for _, artifact := range list.Artifacts {
			if path := local(artifact.URI); path != "" {
				found = append(found, path)
			}
		}
	}
	return append(found, e.Outputs.OutputFile)
}

// warn says, as KFP does, which output has no local file: the step is green all the same.
func (e executorInput) warn() {
	for name, list := range e.Outputs.Artifacts {
		for _, artifact := range list.Artifacts {
			if _, err := os.Stat(local(artifact.URI)); err != nil {
				fmt.Printf("Warning: output artifact %s has no local file, its URI is kept: %s\n", name, artifact.URI)
			}
		}
	}
}

// publish hands the executor's output over, and fails as KFP does if a declared parameter has no value.
func (e executorInput) publish() error {
	written, err := os.ReadFile(e.Outputs.OutputFile)
	if os.IsNotExist(err) {
		written, err = []byte("{}"), nil
	}
	if err != nil {
		return err
	}
	var output struct{ ParameterValues map[string]json.RawMessage }
	if err := json.Unmarshal(written, &output); err != nil {
		return fmt.Errorf("executor output: %w", err)
	}
	for name, parameter := range e.Outputs.Parameters {
		if _, given := output.ParameterValues[name]; given {
			continue
		}
		if _, err := os.Stat(parameter.OutputFile); err != nil {
			return fmt.Errorf("failed to read output parameter name=%q: %w", name, err)
		}
	}
	return os.WriteFile(result, written, 0o644)
}

func local(uri string) string {
	for scheme, folder := range map[string]string{"gs://": "/gcs/", "minio://": "/minio/", "s3://": "/s3/"} {
		if rest, found := strings.CutPrefix(uri, scheme); found {
			return folder + rest
		}
	}
	return ""
}

// wait ends when main has, and prints what main's launcher handed over.
func wait([]string) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	for !ended() {
		select {
		case <-stop:
			return nil
		case <-time.After(look / 4):
		}
	}
	written, err := os.ReadFile(result)
	if err == nil {
		fmt.Println(string(written))
	}
	return nil
}

// ended says whether main was there and is no more.
func ended() bool {
	lock, err := os.Open(alive)
	if err != nil {
		return false
	}
	defer lock.Close()
	return syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
}

func kill(arguments []string) error {
	number, err := strconv.Atoi(arguments[0])
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(arguments[1])
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.Signal(number))
}
