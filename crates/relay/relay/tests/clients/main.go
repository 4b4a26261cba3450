// A client and an upstream of Go's net/http.
//
//	clients post http1|http2 DOCUMENT URL    posts it with a length and in chunks, and prints both responses
//	clients upstream http1|http2             prints its address, and serves until its standard input ends
//
// The upstream returns each document in the way that the path names, as upstream.mjs does.
package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
)

func main() {
	var protocols http.Protocols
	protocols.SetHTTP1(os.Args[2] == "http1")
	protocols.SetUnencryptedHTTP2(os.Args[2] == "http2")
	if os.Args[1] == "post" {
		post(&http.Client{Transport: &http.Transport{Protocols: &protocols}}, os.Args[3], os.Args[4])
		return
	}
	upstream(&protocols)
}

func post(client *http.Client, document, url string) {
	halves := io.MultiReader(strings.NewReader(document[:9]), strings.NewReader(document[9:]))
	for _, body := range []io.Reader{strings.NewReader(document), halves} {
		response, err := client.Post(url, "application/json", body)
		must(err)
		text, err := io.ReadAll(response.Body)
		must(err)
		if response.StatusCode != http.StatusOK {
			must(fmt.Errorf("%s: %s", response.Status, text))
		}
		fmt.Printf("%s\n", text)
	}
}

func upstream(protocols *http.Protocols) {
	var mutex sync.Mutex
	var last []byte
	var expected bool
	answer := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		mutex.Lock()
		defer mutex.Unlock()
		if r.Method == http.MethodPost {
			last, expected = body, r.Header.Get("Expect") != ""
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Protocol", r.Proto)
		if expected {
			w.Header().Set("X-Expected", "1")
		}
		switch {
		case strings.HasSuffix(r.URL.Path, "/chunked"):
			for _, half := range [][]byte{last[:9], last[9:]} {
				w.Write(half)
				w.(http.Flusher).Flush()
			}
		case strings.HasSuffix(r.URL.Path, "/gzip"):
			var packed bytes.Buffer
			writer := gzip.NewWriter(&packed)
			writer.Write(last)
			writer.Close()
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(packed.Bytes())
		case strings.HasSuffix(r.URL.Path, "/trailers"):
			w.Header().Set("Trailer", "X-Checksum")
			w.Write(last)
			// Without a length, which HTTP/1.1 cannot combine with trailers.
			w.(http.Flusher).Flush()
			w.Header().Set("X-Checksum", fmt.Sprint(len(last)))
		default:
			w.Header().Set("Content-Length", fmt.Sprint(len(last)))
			w.Write(last)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	fmt.Println(listener.Addr())
	server := &http.Server{Handler: http.HandlerFunc(answer), Protocols: protocols}
	go server.Serve(listener)
	io.Copy(io.Discard, os.Stdin)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
