// What Go's readers find under the selected names. Lines as for readers.py.
package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
)

var fields = []string{"ssn", "token", "card_number", "user[ssn]", "items[0]", "card[number]"}

type message struct{ Kind, Type, Text string }

// The document as a service declares it. encoding/json ignores the case of keys.
type document struct {
	Ssn   any `json:"ssn"`
	Token any `json:"token"`
	Card  struct {
		Number any `json:"number"`
	} `json:"card"`
	CardNumber any `json:"card_number"`
	User       struct {
		Ssn any `json:"ssn"`
	} `json:"user"`
	Items any `json:"items"`
}

// The first element of a list, also of one that is an object.
func first(items any) any {
	switch items := items.(type) {
	case []any:
		if len(items) > 0 {
			return items[0]
		}
	case map[string]any:
		return items["0"]
	}
	return nil
}

func texts(value any) []string {
	switch value := value.(type) {
	case nil:
		return nil
	case map[string]any:
		var found []string
		for _, each := range value {
			found = append(found, texts(each)...)
		}
		return found
	case []any:
		var found []string
		for _, each := range value {
			found = append(found, texts(each)...)
		}
		return found
	default:
		return []string{fmt.Sprint(value)}
	}
}

func selected(values url.Values) []string {
	var found []string
	for _, name := range fields {
		found = append(found, values[name]...)
	}
	return found
}

func read(it message) map[string][]string {
	text, _ := base64.StdEncoding.DecodeString(it.Text)
	switch it.Kind {
	case "json":
		var parsed document
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		// What follows the first value is left, as by many services.
		_ = decoder.Decode(&parsed)
		values := []any{parsed.Ssn, parsed.Token, parsed.Card.Number, parsed.CardNumber, parsed.User.Ssn, first(parsed.Items)}
		return map[string][]string{"encoding/json": texts(values)}
	case "multipart":
		request, err := http.NewRequest("POST", "/", bytes.NewReader(text))
		if err != nil {
			return nil
		}
		request.Header.Set("Content-Type", it.Type)
		_ = request.ParseMultipartForm(1 << 20)
		if request.MultipartForm == nil {
			return nil
		}
		found := selected(request.MultipartForm.Value)
		for _, name := range fields {
			for _, head := range request.MultipartForm.File[name] {
				if file, err := head.Open(); err == nil {
					content, _ := io.ReadAll(file)
					found = append(found, string(content))
				}
			}
		}
		return map[string][]string{"mime/multipart": found}
	default:
		values, _ := url.ParseQuery(string(text))
		return map[string][]string{"net/url": selected(values)}
	}
}

func main() {
	lines := bufio.NewReader(os.Stdin)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var it message
		if json.Unmarshal(line, &it) != nil {
			os.Exit(1)
		}
		answer, _ := json.Marshal(read(it))
		out.Write(append(answer, '\n'))
	}
}
