package main

import (
	"bytes"
	"crypto/md5"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/storage"
	"github.com/fsouza/fake-gcs-server/fakestorage"
)

// The least size of a part, but for the last (https://cloud.google.com/storage/quotas#requests).
const minPart = 5 << 20

// server answers the XML API (https://cloud.google.com/storage/docs/xml-api/overview) over fake-gcs-server's objects,
// and hands on what fake-gcs-server answers itself: the JSON API and reading objects.
type server struct {
	store   *fakestorage.Server
	next    http.Handler
	mutex   sync.Mutex // over uploads, and over checks of a generation with what follows from them
	uploads map[string]*upload
}

type upload struct {
	bucket, key, kind string
	begun             time.Time
	parts             map[int][]byte
}

func newServer(store *fakestorage.Server) *server {
	return &server{store: store, next: store.HTTPHandler(), uploads: map[string]*upload{}}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	name, rest, _ := strings.Cut(path, "/")
	bucket, err := url.PathUnescape(name)
	key, keyErr := url.PathUnescape(rest)
	if err != nil || keyErr != nil {
		refuse(w, http.StatusBadRequest, "InvalidURI", path)
		return
	}
	if slices.Contains([]string{"storage", "upload", "download", "batch", "_internal"}, bucket) {
		s.next.ServeHTTP(w, r)
		return
	}
	if _, err := s.store.Backend().GetBucket(bucket); err != nil {
		refuse(w, http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist.")
		return
	}
	query := r.URL.Query()
	switch {
	case key == "" && r.Method == http.MethodGet && query.Has("uploads"):
		s.listUploads(w, bucket)
	case key == "" && r.Method == http.MethodGet:
		s.list(w, bucket, query)
	case r.Method == http.MethodPost && query.Has("uploads"):
		s.initiate(w, r, bucket, key)
	case query.Has("uploadId"):
		s.resume(w, r, bucket, key, query)
	case r.Method == http.MethodPut:
		s.put(w, r, bucket, key)
	default:
		s.read(w, r, bucket, key)
	}
}

// read hands on reading and deleting an object that is there.
func (s *server) read(w http.ResponseWriter, r *http.Request, bucket, key string) {
	object, err := s.store.GetObjectStreaming(bucket, key)
	if err != nil {
		refuse(w, http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")
		return
	}
	object.Close()
	if wanted := r.Header.Get("If-Match"); wanted != "" && strings.Trim(wanted, `"`) != object.Etag {
		refuse(w, http.StatusPreconditionFailed, "PreconditionFailed", "The object has another ETag.")
		return
	}
	s.next.ServeHTTP(w, r)
}

func (s *server) put(w http.ResponseWriter, r *http.Request, bucket, key string) {
	if source := r.Header.Get("x-goog-copy-source"); source != "" {
		s.copy(w, r, bucket, key, source)
		return
	}
	if body, ok := body(w, r); ok {
		s.create(w, r, bucket, key, r.Header.Get("Content-Type"), body)
	}
}

// create makes the object, and answers with what it wrote into the headers.
func (s *server) create(w http.ResponseWriter, r *http.Request, bucket, key, kind string, content []byte) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if wanted := r.Header.Get("x-goog-if-generation-match"); wanted != "" {
		generation := int64(0)
		if object, err := s.store.GetObjectStreaming(bucket, key); err == nil {
			generation = object.Generation
			object.Close()
		}
		if wanted != strconv.FormatInt(generation, 10) {
			refuse(w, http.StatusPreconditionFailed, "PreconditionFailed", "The object has another generation.")
			return false
		}
	}
	attributes := fakestorage.ObjectAttrs{BucketName: bucket, Name: key, ContentType: kind, ACL: []storage.ACLRule{}}
	object := fakestorage.Object{ObjectAttrs: attributes, Content: content}
	if err := s.store.CreateObjectStreaming(object.StreamingObject()); err != nil {
		refuse(w, http.StatusInternalServerError, "InternalError", err.Error())
		return false
	}
	made, err := s.store.GetObjectStreaming(bucket, key)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "InternalError", err.Error())
		return false
	}
	made.Close()
	w.Header().Set("ETag", strconv.Quote(made.Etag))
	w.Header().Set("x-goog-generation", strconv.FormatInt(made.Generation, 10))
	w.Header().Set("x-goog-hash", "crc32c="+made.Crc32c)
	w.Header().Add("x-goog-hash", "md5="+made.Md5Hash)
	return true
}

func (s *server) copy(w http.ResponseWriter, r *http.Request, bucket, key, source string) {
	name, rest, _ := strings.Cut(strings.TrimPrefix(source, "/"), "/")
	from, err := url.PathUnescape(name)
	fromKey, keyErr := url.PathUnescape(rest)
	object, getErr := s.store.GetObject(from, fromKey)
	if errors.Join(err, keyErr, getErr) != nil {
		refuse(w, http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")
		return
	}
	if s.create(w, r, bucket, key, object.ContentType, object.Content) {
		answer(w, struct {
			XMLName xml.Name `xml:"CopyObjectResult"`
			ETag    string
		}{ETag: w.Header().Get("ETag")})
	}
}

// list answers pages of at most 1,000 names (https://cloud.google.com/storage/docs/xml-api/get-bucket-list).
func (s *server) list(w http.ResponseWriter, bucket string, query url.Values) {
	limit := 1000
	if given, err := strconv.Atoi(query.Get("max-keys")); err == nil && given < limit {
		limit = given
	}
	found, err := s.store.ListObjectsWithOptionsPaginated(bucket, fakestorage.ListOptions{
		Prefix:    query.Get("prefix"),
		Delimiter: query.Get("delimiter"),
		// A name after all that came before and the smallest that is: GCS's start-after is exclusive, this is not.
		StartOffset: after(query.Get("start-after")),
		PageToken:   query.Get("continuation-token"),
		MaxResults:  limit,
	})
	if err != nil {
		refuse(w, http.StatusInternalServerError, "InternalError", err.Error())
		return
	}
	type contents struct {
		Key, LastModified, ETag string
		Size                    int64
	}
	result := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		Name, Prefix          string
		IsTruncated           bool
		NextContinuationToken string                     `xml:",omitempty"`
		Contents              []contents                 `xml:"Contents"`
		CommonPrefixes        []fakestorage.CommonPrefix `xml:"CommonPrefixes"`
	}{Name: bucket, Prefix: query.Get("prefix"), NextContinuationToken: found.NextPageToken}
	result.IsTruncated = found.NextPageToken != ""
	for _, object := range found.Objects {
		changed := object.Updated.UTC().Format("2006-01-02T15:04:05.000Z")
		result.Contents = append(result.Contents, contents{object.Name, changed, strconv.Quote(object.Etag), object.Size})
	}
	for _, prefix := range found.Prefixes {
		result.CommonPrefixes = append(result.CommonPrefixes, fakestorage.CommonPrefix{Prefix: prefix})
	}
	answer(w, result)
}

func after(name string) string {
	if name == "" {
		return ""
	}
	return name + "\x00"
}

// initiate begins a multipart upload (https://cloud.google.com/storage/docs/multipart-uploads).
func (s *server) initiate(w http.ResponseWriter, r *http.Request, bucket, key string) {
	id := rand.Text()
	s.mutex.Lock()
	kind := r.Header.Get("Content-Type")
	s.uploads[id] = &upload{bucket: bucket, key: key, kind: kind, begun: time.Now(), parts: map[int][]byte{}}
	s.mutex.Unlock()
	answer(w, struct {
		XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
		Bucket   string
		Key      string
		UploadId string
	}{Bucket: bucket, Key: key, UploadId: id})
}

func (s *server) listUploads(w http.ResponseWriter, bucket string) {
	type one struct{ Key, UploadId, Initiated string }
	result := struct {
		XMLName xml.Name `xml:"ListMultipartUploadsResult"`
		Bucket  string
		Upload  []one
	}{Bucket: bucket}
	s.mutex.Lock()
	for id, upload := range s.uploads {
		if upload.bucket == bucket {
			result.Upload = append(result.Upload, one{upload.key, id, upload.begun.UTC().Format(time.RFC3339)})
		}
	}
	s.mutex.Unlock()
	answer(w, result)
}

// resume takes a part of an upload, completes it or gives it up.
func (s *server) resume(w http.ResponseWriter, r *http.Request, bucket, key string, query url.Values) {
	id := query.Get("uploadId")
	content, ok := body(w, r)
	if !ok {
		return
	}
	s.mutex.Lock()
	known := s.uploads[id]
	if known == nil || known.bucket != bucket || known.key != key {
		s.mutex.Unlock()
		refuse(w, http.StatusNotFound, "NoSuchUpload", "The specified multipart upload does not exist.")
		return
	}
	switch r.Method {
	case http.MethodPut:
		number, err := strconv.Atoi(query.Get("partNumber"))
		if err != nil || number < 1 || number > 10000 {
			s.mutex.Unlock()
			refuse(w, http.StatusBadRequest, "InvalidArgument", "partNumber is 1 to 10,000.")
			return
		}
		known.parts[number] = content
		s.mutex.Unlock()
		w.Header().Set("ETag", etag(content))
	case http.MethodDelete:
		delete(s.uploads, id)
		s.mutex.Unlock()
		w.WriteHeader(http.StatusNoContent)
	case http.MethodPost:
		whole, code := known.join(content)
		s.mutex.Unlock()
		if code != "" {
			refuse(w, http.StatusBadRequest, code, "The parts do not make an object.")
			return
		}
		s.complete(w, r, id, known, whole)
	default:
		s.mutex.Unlock()
		refuse(w, http.StatusMethodNotAllowed, "MethodNotAllowed", r.Method)
	}
}

func (s *server) complete(w http.ResponseWriter, r *http.Request, id string, known *upload, whole []byte) {
	if !s.create(w, r, known.bucket, known.key, known.kind, whole) {
		return
	}
	s.mutex.Lock()
	delete(s.uploads, id)
	s.mutex.Unlock()
	answer(w, struct {
		XMLName     xml.Name `xml:"CompleteMultipartUploadResult"`
		Bucket, Key string
		ETag        string
	}{Bucket: known.bucket, Key: known.key, ETag: w.Header().Get("ETag")})
}

// join puts the parts together that the request names; the second result is an error code.
func (u *upload) join(request []byte) ([]byte, string) {
	var wanted struct {
		Part []struct {
			PartNumber int
			ETag       string
		}
	}
	if err := xml.Unmarshal(request, &wanted); err != nil || len(wanted.Part) == 0 {
		return nil, "MalformedXML"
	}
	var whole bytes.Buffer
	last := 0
	for index, part := range wanted.Part {
		content, known := u.parts[part.PartNumber]
		switch {
		case part.PartNumber <= last:
			return nil, "InvalidPartOrder"
		case !known || strings.Trim(part.ETag, `"`) != strings.Trim(etag(content), `"`):
			return nil, "InvalidPart"
		case index < len(wanted.Part)-1 && len(content) < minPart:
			return nil, "EntityTooSmall"
		}
		last = part.PartNumber
		whole.Write(content)
	}
	return whole.Bytes(), ""
}

func etag(content []byte) string {
	sum := md5.Sum(content)
	return strconv.Quote(hex.EncodeToString(sum[:]))
}

// body reads all of a request and holds it against its length and checksums; what is short or wrong is refused.
func body(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	content, err := io.ReadAll(r.Body)
	if err != nil || r.ContentLength >= 0 && int64(len(content)) != r.ContentLength {
		refuse(w, http.StatusBadRequest, "IncompleteBody", fmt.Sprint(err))
		return nil, false
	}
	sum := md5.Sum(content)
	crc := crc32.Checksum(content, crc32.MakeTable(crc32.Castagnoli))
	has := map[string]string{
		"md5":    base64.StdEncoding.EncodeToString(sum[:]),
		"crc32c": base64.StdEncoding.EncodeToString([]byte{byte(crc >> 24), byte(crc >> 16), byte(crc >> 8), byte(crc)}),
	}
	given := strings.Split(strings.Join(r.Header.Values("x-goog-hash"), ","), ",")
	if sum := r.Header.Get("Content-MD5"); sum != "" {
		given = append(given, "md5="+sum)
	}
	for _, one := range given {
		name, value, _ := strings.Cut(strings.TrimSpace(one), "=")
		if known, ok := has[name]; ok && known != value {
			refuse(w, http.StatusBadRequest, "BadDigest", "The "+name+" you specified did not match what we received.")
			return nil, false
		}
	}
	return content, true
}

func answer(w http.ResponseWriter, result any) {
	w.Header().Set("Content-Type", "application/xml; charset=UTF-8")
	io.WriteString(w, xml.Header)
	xml.NewEncoder(w).Encode(result)
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml; charset=UTF-8")
	w.WriteHeader(status)
	io.WriteString(w, xml.Header)
	xml.NewEncoder(w).Encode(struct {
		XMLName       xml.Name `xml:"Error"`
		Code, Message string
	}{Code: code, Message: message})
}
