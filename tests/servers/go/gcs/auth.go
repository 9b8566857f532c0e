package main

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Access is what a caller may do: "" nothing, "read", or "write", which includes reading and making buckets.
type Access string

// Caller is who holds a token.
type Caller struct {
	Access Access `json:"access"`
	// Seconds since 1970; 0 is never.
	Expires int64 `json:"expires"`
}

// KeyFile is a service account's key file (https://cloud.google.com/iam/docs/keys-create-delete).
type KeyFile struct {
	Type         string `json:"type"`
	ClientEmail  string `json:"client_email"`
	PrivateKeyID string `json:"private_key_id"`
	PrivateKey   string `json:"private_key"`
	TokenURI     string `json:"token_uri"`
	BaseURL      string `json:"gcs_base_url"`
}

type guard struct {
	config Config
	keys   map[string]*rsa.PublicKey
	mutex  sync.Mutex // over config.Tokens
}

func newGuard(config Config, url string) (*guard, map[string]KeyFile, error) {
	keys := map[string]*rsa.PublicKey{}
	files := map[string]KeyFile{}
	for email := range config.Accounts {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			return nil, nil, err
		}
		raw, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, nil, err
		}
		keys[email] = &key.PublicKey
		files[email] = KeyFile{
			Type:         "service_account",
			ClientEmail:  email,
			PrivateKeyID: rand.Text(),
			PrivateKey:   string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})),
			TokenURI:     url + "/token",
			BaseURL:      url,
		}
	}
	return &guard{config: config, keys: keys}, files, nil
}

// protect lets through who may, and answers the others as Google does.
func (g *guard) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/computeMetadata/v1/instance/service-accounts/default/token" {
			g.serveMetadata(w, r)
			return
		}
		if r.URL.Path == "/token" && r.Method == http.MethodPost {
			g.exchange(w, r)
			return
		}
		access, err := g.access(r)
		if err != nil {
			refuse(w, http.StatusUnauthorized, "AuthenticationRequired", err.Error())
			return
		}
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if access == "write" || access == "read" && reads {
			next.ServeHTTP(w, r)
			return
		}
		if access == "" && r.Header.Get("Authorization") == "" {
			refuse(w, http.StatusUnauthorized, "AuthenticationRequired", "Anonymous caller does not have access.")
			return
		}
		refuse(w, http.StatusForbidden, "AccessDenied", "The caller does not have the permission for "+r.Method+".")
	})
}

func (g *guard) access(r *http.Request) (Access, error) {
	token := strings.TrimSpace(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer"))
	if token == "" {
		return g.config.Anonymous, nil
	}
	if strings.Count(token, ".") == 2 {
		return g.signed(token)
	}
	g.mutex.Lock()
	caller, known := g.config.Tokens[token]
	g.mutex.Unlock()
	if !known {
		return "", errors.New("Invalid Credentials")
	}
	if caller.Expires != 0 && time.Now().Unix() >= caller.Expires {
		return "", errors.New("Invalid Credentials: the access token has expired")
	}
	return caller.Access, nil
}

// claims are what a service account says of itself (RFC 7519, https://google.aip.dev/auth/4111).
type claims struct {
	Iss, Scope string
	Aud        any
	Exp        int64
}

// signed checks a token that a service account made itself.
func (g *guard) signed(token string) (Access, error) {
	said, err := g.verify(token)
	if err != nil {
		return "", err
	}
	scopes := []string{
		"https://www.googleapis.com/auth/cloud-platform",
		"https://www.googleapis.com/auth/devstorage.full_control",
		"https://www.googleapis.com/auth/devstorage.read_write",
	}
	fits := func(scope string) bool { return slices.Contains(scopes, scope) }
	if said.Aud != "https://storage.googleapis.com/" && !slices.ContainsFunc(strings.Fields(said.Scope), fits) {
		return "", fmt.Errorf("Invalid JWT: scope %q and audience %v do not include the storage", said.Scope, said.Aud)
	}
	return g.config.Accounts[said.Iss], nil
}

func (g *guard) verify(token string) (*claims, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, errors.New("Invalid JWT")
	}
	var header struct{ Alg string }
	var said claims
	if err := errors.Join(decode(parts[0], &header), decode(parts[1], &said)); err != nil {
		return nil, fmt.Errorf("Invalid JWT: %w", err)
	}
	key, known := g.keys[said.Iss]
	if !known {
		return nil, errors.New("Invalid JWT: account not found: " + said.Iss)
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if err != nil || header.Alg != "RS256" || rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], signature) != nil {
		return nil, errors.New("Invalid JWT Signature")
	}
	if time.Now().Unix() >= said.Exp {
		return nil, errors.New("Invalid JWT: the token has expired")
	}
	return &said, nil
}

// exchange gives an access token for one that a service account signed (RFC 7523): so do Google's own libraries.
func (g *guard) exchange(w http.ResponseWriter, r *http.Request) {
	said, err := g.verify(r.PostFormValue("assertion"))
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		json.NewEncoder(w).Encode(map[string]string{"error": "invalid_grant", "error_description": err.Error()})
		return
	}
	token := "ya29-" + rand.Text()
	g.mutex.Lock()
	g.config.Tokens[token] = Caller{Access: g.config.Accounts[said.Iss], Expires: time.Now().Unix() + 3600}
	g.mutex.Unlock()
	json.NewEncoder(w).Encode(map[string]any{"access_token": token, "expires_in": 3600, "token_type": "Bearer"})
}

func decode(part string, into any) error {
	raw, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// serveMetadata stands for the metadata server of a node (https://cloud.google.com/compute/docs/metadata/overview).
func (g *guard) serveMetadata(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Metadata-Flavor") != "Google" {
		http.Error(w, "Missing required header Metadata-Flavor: Google", http.StatusForbidden)
		return
	}
	if g.config.MetadataToken == "" {
		http.Error(w, "no service account", http.StatusNotFound)
		return
	}
	w.Header().Set("Metadata-Flavor", "Google")
	w.Header().Set("Content-Type", "application/json")
	answer := map[string]any{"access_token": g.config.MetadataToken, "expires_in": 3600, "token_type": "Bearer"}
	json.NewEncoder(w).Encode(answer)
}
