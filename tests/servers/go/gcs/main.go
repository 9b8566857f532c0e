// Command gcs is a Google Cloud Storage server for tests: fake-gcs-server, and in front of it what that lacks and
// obstore needs: the XML API's object and multipart uploads, its paged listing, and credentials that are checked.
//
// It reads its configuration (struct Config) as JSON from standard input, listens on 127.0.0.1, prints one line of JSON
// (struct Started) and serves until standard input ends.
package main

import (
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

// Config says who may do what.
type Config struct {
	// Callers by bearer token.
	Tokens map[string]Caller `json:"tokens"`
	// Service accounts by client_email: callers that sign their own tokens with a key that is made here.
	Accounts map[string]Access `json:"accounts"`
	// What a caller without a token may do.
	Anonymous Access `json:"anonymous"`
	// Name of the token that the metadata server gives to who asks for it, as it does under workload identity.
	MetadataToken string `json:"metadata_token"`
	// Where objects are stored. Empty for memory: that is slow for thousands, but takes names that no file system does.
	Folder string `json:"folder"`
}

// Started says where the server is, and how its service accounts identify themselves.
type Started struct {
	URL string `json:"url"`
	// Key files by client_email, as Google's console gives them out, with the base URL that obstore reads from them.
	Keys map[string]KeyFile `json:"keys"`
}

func main() {
	var config Config
	input := json.NewDecoder(os.Stdin)
	if err := input.Decode(&config); err != nil {
		log.Fatalf("configuration on standard input: %v", err)
	}
	if config.Tokens == nil {
		config.Tokens = map[string]Caller{}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	url := "http://" + listener.Addr().String()
	store, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		NoListener:  true,
		StorageRoot: config.Folder,
		Scheme:      "http",
		ExternalURL: url,
		PublicHost:  "127.0.0.1", // without a port: a proxy in front has another
	})
	if err != nil {
		log.Fatal(err)
	}
	guard, keys, err := newGuard(config, url)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(Started{URL: url, Keys: keys}); err != nil {
		log.Fatal(err)
	}
	go func() { // who started it has ended, however that was
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	log.Fatal(http.Serve(listener, guard.protect(newServer(store))))
}
