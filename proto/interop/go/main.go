// Checks Go's stock MessagePack-RPC client against a running engine.
//
//	go run . PROGRAM VECTORS
//
// PROGRAM is the sealwire program, VECTORS is proto/vectors/text-errors.jsonl. Starts `sealwire dev` in a temporary
// folder on free ports.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/ugorji/go/codec"
)

type params = map[string]any

// document is the part of a document result that is checked here.
type document struct {
	Payload any `codec:"payload"`
}

// pipelined is how many requests of one connection are in flight together.
const pipelined = 500

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: go run . PROGRAM VECTORS")
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
	fmt.Println("rpc interop: pipelined requests and every error code, from Go's stock client")
}

func run(program, vectors string) error {
	if err := checkVectors(vectors); err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "sealwire-go-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	any := "127.0.0.1:0"
	engine := exec.Command(program, "dev", "--folder", folder, "--listen", any, "--admin", any, "--control", any, "--http", any)
	out, err := engine.StdoutPipe()
	if err != nil {
		return err
	}
	if err := engine.Start(); err != nil {
		return err
	}
	checked := check(program, folder, bufio.NewReader(out))
	if err := engine.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		return err
	}
	if err := engine.Wait(); err != nil && checked == nil {
		return fmt.Errorf("the engine: %w", err)
	}
	return checked
}

// check runs everything against the engine, whose output is said.
func check(program, folder string, said *bufio.Reader) error {
	first, err := said.ReadString('\n')
	if err != nil {
		return fmt.Errorf("the engine said nothing: %w", err)
	}
	go io.Copy(io.Discard, said)
	ports := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindAllString(first, -1)
	if len(ports) != 2 {
		return fmt.Errorf("no two addresses in %q", first)
	}
	if err := prepare(program, folder, ports[1]); err != nil {
		return err
	}
	client, err := dial(ports[0], folder, "client")
	if err != nil {
		return err
	}
	defer client.Close()
	limited, err := dial(ports[0], folder, "limited")
	if err != nil {
		return err
	}
	defer limited.Close()
	if err := checkPipelined(client); err != nil {
		return err
	}
	if err := checkErrors(client, limited); err != nil {
		return err
	}
	return checkPipelined(client)
}

// prepare makes a second app, and a second client that may encrypt a few fields an hour and decrypt nothing.
func prepare(program, folder, control string) error {
	at := []string{"--folder", folder, "--connect", control, "--server-name", "localhost"}
	for _, command := range [][]string{
		{"certs", "client", "limited", "--folder", folder},
		append([]string{"apps", "create", "other"}, at...),
		append([]string{"roles", "set", "limited", "encrypt apps=demo hourly=20"}, at...),
		append([]string{"principals", "grant", "limited", "limited"}, at...),
	} {
		if said, err := exec.Command(program, command...).CombinedOutput(); err != nil {
			return fmt.Errorf("sealwire %s: %w: %s", strings.Join(command, " "), err, said)
		}
	}
	return nil
}

// checkPipelined encrypts and decrypts many documents, every other request a wrong one.
func checkPipelined(client *rpc.Client) error {
	plain := make([]any, pipelined)
	for i := range plain {
		plain[i] = map[string]any{
			"name":   fmt.Sprintf("Zoë %d", i),
			"number": int64(i),
			"binary": []byte{0, 0xff, byte(i)},
			"list":   []any{true, nil, 1.5, strings.Repeat("a", i)},
		}
	}
	sealed, err := both(client, "encrypt", plain)
	if err != nil {
		return err
	}
	opened, err := both(client, "decrypt", sealed)
	if err != nil {
		return err
	}
	for i := range plain {
		if reflect.DeepEqual(plain[i], sealed[i]) || !same(plain[i], opened[i]) {
			return fmt.Errorf("document %d: %v came back as %v", i, plain[i], opened[i])
		}
	}
	return nil
}

// both sends one request per payload and as many that fail, all of them before any response is taken.
func both(client *rpc.Client, method string, payloads []any) ([]any, error) {
	good, bad := make([]*rpc.Call, len(payloads)), make([]*rpc.Call, len(payloads))
	for i, payload := range payloads {
		good[i] = client.Go(method, params{"app": "demo", "payload": payload}, new(document), make(chan *rpc.Call, 1))
		bad[i] = client.Go(method, params{"app": "nobody", "payload": payload}, new(document), make(chan *rpc.Call, 1))
	}
	results := make([]any, len(payloads))
	for i := range payloads {
		call := <-good[i].Done
		// A busy machine rejects some of so many.
		for pause, ok := overloaded(call.Error); ok; pause, ok = overloaded(call.Error) {
			time.Sleep(pause)
			call = <-client.Go(method, call.Args, call.Reply, make(chan *rpc.Call, 1)).Done
		}
		if call.Error != nil {
			return nil, fmt.Errorf("%s %d: %w", method, i, call.Error)
		}
		results[i] = good[i].Reply.(*document).Payload
		failed := (<-bad[i].Done).Error
		if code, _, _ := split(fmt.Sprint(failed)); code != "not_found" && code != "overloaded" {
			return nil, fmt.Errorf("%s of an unknown app: %v", method, failed)
		}
	}
	return results, nil
}

// overloaded returns the pause before the next try if the server rejected a request for load.
func overloaded(err error) (time.Duration, bool) {
	code, _, hints := split(fmt.Sprint(err))
	var pause struct {
		RetryAfterMs int64 `json:"retry_after_ms"`
	}
	if code != "overloaded" || json.Unmarshal([]byte(hints), &pause) != nil {
		return 0, false
	}
	return time.Duration(pause.RetryAfterMs) * time.Millisecond, true
}

// same compares values as MessagePack has them: an integer has no sign or width of its own.
func same(a, b any) bool {
	encode := func(value any) string {
		sorted := handle()
		sorted.Canonical = true
		sorted.PositiveIntUnsigned = true
		var bytes []byte
		codec.NewEncoderBytes(&bytes, sorted).MustEncode(value)
		return string(bytes)
	}
	return encode(a) == encode(b)
}

func checkErrors(client, limited *rpc.Client) error {
	seal := func(app string) (any, error) {
		var sealed document
		err := client.Call("encrypt", params{"app": app, "payload": map[string]any{"a": "x"}, "context": "here"}, &sealed)
		return sealed.Payload, err
	}
	own, err := seal("demo")
	if err != nil {
		return err
	}
	foreign, err := seal("other")
	if err != nil {
		return err
	}
	many := params{"app": "demo", "payload": make([]bool, 12)}
	if err := limited.Call("encrypt", many, new(document)); err != nil {
		return err
	}
	deep := any("x")
	for n := 0; n < 100; n++ {
		deep = []any{deep}
	}
	cases := []struct {
		name, method string
		client       *rpc.Client
		params       any
		code, hints  string
	}{
		{"unknown method", "explode", client, params{}, "not_found", ""},
		{"method in Go's style", "Sealwire.Encrypt", client, params{}, "not_found", ""},
		{"unknown app", "encrypt", client, params{"app": "nobody", "payload": 1}, "not_found", ""},
		{"unknown parameter", "encrypt", client, params{"app": "demo", "payload": 1, "colour": "red"}, "bad_request", ""},
		{"no payload", "encrypt", client, params{"app": "demo"}, "bad_request", ""},
		{"app a number", "encrypt", client, params{"app": 7, "payload": 1}, "bad_request", ""},
		{"params not a map", "encrypt", client, 7, "bad_request", ""},
		{
			"nested too deep", "encrypt", client, params{"app": "demo", "payload": deep},
			"too_large", `{"details":{"limit":"depth_max","max":64}}`,
		},
		{
			"another context", "decrypt", client, params{"app": "demo", "payload": own, "context": "there"},
			"cannot_open", `{"details":{"path":"$.a"}}`,
		},
		{
			"another app's key", "decrypt", client, params{"app": "demo", "payload": foreign, "context": "here"},
			"cannot_open", `{"details":{"path":"$.a"}}`,
		},
		{
			"generation of the future", "encrypt", client, params{"app": "demo", "payload": 1, "min_generation": 1 << 40},
			"conflict", `{"retry_after_ms":1000}`,
		},
		{
			"not granted", "decrypt", limited, params{"app": "demo", "payload": own},
			"forbidden", `{"details":{"operation":"decrypt","missing":"operation"}}`,
		},
		{
			"beyond the fields of an hour", "encrypt", limited, many,
			"overloaded", `{"retry_after_ms":*,"details":{"reason":"hourly"}}`,
		},
	}
	for _, c := range cases {
		var result document
		err := c.client.Call(c.method, c.params, &result)
		refused, ok := err.(rpc.ServerError)
		if !ok {
			return fmt.Errorf("%s: %T %v, not an error of the server", c.name, err, err)
		}
		code, message, hints := split(string(refused))
		before, after, open := strings.Cut(c.hints, "*")
		matches := hints == c.hints || open && strings.HasPrefix(hints, before) && strings.HasSuffix(hints, after)
		if code != c.code || message == "" || !matches || hints != "" && !json.Valid([]byte(hints)) {
			return fmt.Errorf("%s: %q, expected %s with %s", c.name, refused, c.code, c.hints)
		}
		// The connection lives.
		var health struct {
			Status string `codec:"status"`
		}
		if err := c.client.Call("health", params{}, &health); err != nil || health.Status != "ok" {
			return fmt.Errorf("health after %s: %v %v", c.name, health, err)
		}
	}
	return nil
}

// checkVectors has the stock client read responses with every code, one after the other from one connection.
func checkVectors(path string) error {
	text, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return err
	}
	codes := map[string]int{}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var vector struct{ Code, Text, Response string }
		if err := json.Unmarshal([]byte(line), &vector); err != nil {
			return err
		}
		response, err := hex.DecodeString(vector.Response)
		if err != nil {
			return err
		}
		ours, theirs := net.Pipe()
		reader := codec.MsgpackSpecRpc.ClientCodec(ours, handle())
		const repeats = 3
		go func() {
			for n := 0; n < repeats; n++ {
				theirs.Write(response)
			}
			theirs.Close()
		}()
		for n := 0; n < repeats; n++ {
			var header rpc.Response
			if err := reader.ReadResponseHeader(&header); err != nil {
				return fmt.Errorf("%s: %w", vector.Code, err)
			}
			if err := reader.ReadResponseBody(nil); err != nil {
				return fmt.Errorf("%s: %w", vector.Code, err)
			}
			code, _, hints := split(header.Error)
			if header.Seq != 1 || header.Error != vector.Text || code != vector.Code || hints != "" && !json.Valid([]byte(hints)) {
				return fmt.Errorf("%s: %+v", vector.Code, header)
			}
		}
		codes[vector.Code]++
	}
	if len(codes) != 12 {
		return fmt.Errorf("%d codes in the vectors", len(codes))
	}
	return nil
}
