// Seals fields to a public key of an app with the standard library: the recipe of proto/envelope.md, "Sealing outside".
//
// Reads a JSON object per line and answers with one, as seal.py does.
package main

import (
	"bufio"
	"crypto/ed25519"
	"crypto/hpke"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log"
	"os"
)

type request struct {
	Signed struct {
		Keys, Signature string
	}
	Signer        string
	App           string
	Suite         string
	MinGeneration uint64 `json:"min_generation"`
	Now           uint64
	Context       string
	Fields        []field
}

type field struct {
	Datatype  byte
	Plaintext string
}

type publicKey struct {
	Suite          string
	KeyID          string `json:"key_id"`
	PublicKey      []byte `json:"public_key"`
	KEM, KDF, AEAD uint16
	Info           string
}

type response struct {
	Envelopes []string `json:"envelopes,omitempty"`
	Refused   string   `json:"refused,omitempty"`
}

// suites has the first byte of the headers of each suite.
var suites = map[string]byte{"p256": 1, "p256-mlkem768": 4}

// checkedKey returns the key to seal to. Nothing of the text is read before its signature holds.
func checkedKey(ask request) (*publicKey, error) {
	signer, err := base64.StdEncoding.DecodeString(ask.Signer)
	if err != nil || len(signer) != ed25519.PublicKeySize {
		return nil, errors.New("the signer is no key")
	}
	signature, err := base64.StdEncoding.DecodeString(ask.Signed.Signature)
	if err != nil || !ed25519.Verify(signer, []byte("sealwire/keys/1\x00"+ask.Signed.Keys), signature) {
		return nil, errors.New("signature")
	}
	var text struct {
		Version      int
		App          string
		Generation   uint64
		ExpiresUnixS uint64 `json:"expires_unix_s"`
		Keys         []publicKey
	}
	if err := json.Unmarshal([]byte(ask.Signed.Keys), &text); err != nil {
		return nil, err
	}
	if text.Version != 1 || text.App != ask.App || text.Generation < ask.MinGeneration || text.ExpiresUnixS <= ask.Now {
		return nil, errors.New("another version or app, or too old")
	}
	suite, known := suites[ask.Suite]
	if !known {
		return nil, errors.New("another suite")
	}
	for _, key := range text.Keys {
		if key.Suite == ask.Suite {
			digest := sha256.Sum256(append(append([]byte("sealwire/key-id/1"), suite), key.PublicKey...))
			if hex.EncodeToString(digest[:5]) != key.KeyID {
				return nil, errors.New("the key has another id")
			}
			return &key, nil
		}
	}
	return nil, errors.New("no key")
}

// header returns the bytes before the body of every envelope of an encapsulation.
func header(suite string, id, enc []byte) []byte {
	named := append([]byte{suites[suite]}, id...)
	if suite == "p256" {
		return append(append(named, 2|enc[64]&1), enc[1:33]...)
	}
	digest := sha256.Sum256(append(append([]byte("sealwire/header/1"), named...), enc...))
	named = append(append(named, digest[:20]...), 1)
	return append(append(named, enc...), 0, 0)
}

func seal(key *publicKey, context []byte, fields []field) ([]string, error) {
	kem, err := hpke.NewKEM(key.KEM)
	if err != nil {
		return nil, err
	}
	kdf, err := hpke.NewKDF(key.KDF)
	if err != nil {
		return nil, err
	}
	aead, err := hpke.NewAEAD(key.AEAD)
	if err != nil {
		return nil, err
	}
	recipient, err := kem.NewPublicKey(key.PublicKey)
	if err != nil {
		return nil, err
	}
	enc, sender, err := hpke.NewSender(recipient, kdf, aead, []byte(key.Info))
	if err != nil {
		return nil, err
	}
	id, err := hex.DecodeString(key.KeyID)
	if err != nil {
		return nil, err
	}
	header := header(key.Suite, id, enc)
	var envelopes []string
	for sequence, field := range fields {
		plaintext, err := hex.DecodeString(field.Plaintext)
		if err != nil {
			return nil, err
		}
		sealed, err := sender.Seal(append([]byte{field.Datatype}, context...), plaintext)
		if err != nil {
			return nil, err
		}
		envelope := append(append([]byte{}, header...), field.Datatype)
		envelope = append(binary.BigEndian.AppendUint32(envelope, uint32(sequence)), sealed...)
		envelopes = append(envelopes, "sw1:"+base64.RawURLEncoding.EncodeToString(envelope))
	}
	return envelopes, nil
}

func answer(ask request) response {
	key, err := checkedKey(ask)
	if err != nil {
		return response{Refused: err.Error()}
	}
	context, err := hex.DecodeString(ask.Context)
	if err != nil {
		log.Fatal(err)
	}
	envelopes, err := seal(key, context, ask.Fields)
	if err != nil {
		log.Fatal(err)
	}
	return response{Envelopes: envelopes}
}

func main() {
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var ask request
		if err := json.Unmarshal(line, &ask); err != nil {
			log.Fatal(err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(answer(ask)); err != nil {
			log.Fatal(err)
		}
	}
}
