// HTTP and HTTPS servers, a relay and their clients in one program; prints one line per check.
package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	address, port, tlsPort, relayPort = os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	role                              = os.Args[5]
	rounds, _                         = strconv.Atoi(os.Args[6])
	plain, secure                     = "http://" + address + ":" + port, "https://" + address + ":" + tlsPort
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func expect(holds bool, format string, words ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf(format, words...)
}

// Server.

func answer(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/self" {
		http.ServeFile(w, r, os.Args[0]) // by sendfile
		return
	}
	hash := sha256.New()
	n, err := io.Copy(hash, r.Body)
	if err != nil {
		return
	}
	fmt.Fprintf(w, "%s %s %d %x", r.Proto, r.URL.Path, n, hash.Sum(nil))
}

func certificate() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	form := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	made, err := x509.CreateCertificate(rand.Reader, &form, &form, &key.PublicKey, key)
	check(err)
	return tls.Certificate{Certificate: [][]byte{made}, PrivateKey: key}
}

// io.Copy between two TCP connections uses splice.
func relay(client *net.TCPConn) {
	there, err := net.Dial("tcp", address+":"+port)
	if err != nil {
		client.Close()
		return
	}
	server := there.(*net.TCPConn)
	var both sync.WaitGroup
	both.Add(2)
	pass := func(to, from *net.TCPConn) {
		defer both.Done()
		io.Copy(to, from)
		to.CloseWrite()
	}
	go pass(server, client)
	go pass(client, server)
	both.Wait()
	client.Close()
	server.Close()
}

func listen(port string) net.Listener {
	listener, err := net.Listen("tcp", address+":"+port)
	check(err)
	return listener
}

func serve() {
	open, relayed := listen(port), listen(relayPort)
	handler := http.HandlerFunc(answer)
	over := http.Server{Handler: handler, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate()}}}
	go over.ServeTLS(listen(tlsPort), "", "")
	go http.Serve(open, handler)
	fmt.Println("listening")
	for {
		client, err := relayed.Accept()
		check(err)
		go relay(client.(*net.TCPConn))
	}
}

// Clients.

// A client with connections of its own, and a counter of them.
func client(http2 bool) (*http.Client, *int64) {
	made := new(int64)
	dial := func(c context.Context, network, to string) (net.Conn, error) {
		atomic.AddInt64(made, 1)
		return (&net.Dialer{}).DialContext(c, network, to)
	}
	config := &tls.Config{InsecureSkipVerify: true}
	return &http.Client{Transport: &http.Transport{DialContext: dial, TLSClientConfig: config, ForceAttemptHTTP2: http2}}, made
}

// Posts and compares the answer.
func ask(c *http.Client, base, protocol, path string, body []byte) error {
	reply, err := c.Post(base+path, "text/plain", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	said, err := io.ReadAll(reply.Body)
	if err != nil {
		return err
	}
	wanted := fmt.Sprintf("%s %s %d %x", protocol, path, len(body), sha256.Sum256(body))
	return expect(string(said) == wanted, "%q instead of %q", said, wanted)
}

// Runs `n` at a time; returns the first error.
func together(n int, do func(int) error) error {
	found := make(chan error, n)
	for i := 0; i < n; i++ {
		go func(i int) { found <- do(i) }(i)
	}
	var first error
	for i := 0; i < n; i++ {
		if err := <-found; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func one() error {
	c, made := client(false)
	defer c.CloseIdleConnections()
	for i := 0; i < rounds; i++ {
		if err := ask(c, plain, "HTTP/1.1", fmt.Sprint("/", i), bytes.Repeat([]byte("x"), i)); err != nil {
			return err
		}
	}
	return expect(*made == 1, "%d connections", *made)
}

func many() error {
	c, _ := client(false)
	defer c.CloseIdleConnections()
	return together(200, func(i int) error { return ask(c, plain, "HTTP/1.1", fmt.Sprint("/many/", i), make([]byte, 10000)) })
}

func fresh() error {
	c, made := client(false)
	c.Transport.(*http.Transport).DisableKeepAlives = true
	for i := 0; i < rounds; i++ {
		if err := ask(c, plain, "HTTP/1.1", "/once", nil); err != nil {
			return err
		}
	}
	return expect(*made == int64(rounds), "%d connections", *made)
}

func random(size int) []byte {
	body := make([]byte, size)
	rand.Read(body)
	return body
}

func large() error {
	c, _ := client(false)
	defer c.CloseIdleConnections()
	if err := ask(c, plain, "HTTP/1.1", "/up", random(5000000)); err != nil {
		return err
	}
	reply, err := c.Get(plain + "/self")
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	said, err := io.ReadAll(reply.Body)
	own, _ := os.ReadFile(os.Args[0])
	return expect(err == nil && len(own) > 0 && bytes.Equal(said, own), "%d bytes of %d, %v", len(said), len(own), err)
}

func secured() error {
	return together(10, func(int) error {
		c, _ := client(false)
		defer c.CloseIdleConnections()
		return ask(c, secure, "HTTP/1.1", "/tls", random(500000))
	})
}

func streams() error {
	c, made := client(true)
	defer c.CloseIdleConnections()
	if err := ask(c, secure, "HTTP/2.0", "/first", nil); err != nil {
		return err
	}
	err := together(50, func(i int) error { return ask(c, secure, "HTTP/2.0", fmt.Sprint("/stream/", i), random(20000)) })
	if err != nil {
		return err
	}
	return expect(*made == 1, "%d connections", *made)
}

func relayed() error {
	return together(10, func(i int) error {
		there, err := net.Dial("tcp", address+":"+relayPort)
		if err != nil {
			return err
		}
		defer there.Close()
		body := random(1000000)
		fmt.Fprintf(there, "POST /%d HTTP/1.0\r\nContent-Length: %d\r\n\r\n", i, len(body))
		if _, err := there.Write(body); err != nil {
			return err
		}
		if err := there.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		said, err := io.ReadAll(there)
		return expect(err == nil && strings.HasSuffix(string(said), fmt.Sprintf("/%d 1000000 %x", i, sha256.Sum256(body))), "%q, %v", said, err)
	})
}

func deadline() error {
	there, err := net.Dial("tcp", address+":"+port)
	if err != nil {
		return err
	}
	defer there.Close()
	there.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := there.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%v", err)
	}
	there.SetReadDeadline(time.Time{})
	fmt.Fprint(there, "GET /late HTTP/1.0\r\n\r\n")
	said, err := io.ReadAll(there)
	return expect(err == nil && strings.Contains(string(said), "/late 0 "), "%q, %v", said, err)
}

func refused() error {
	_, err := net.Dial("tcp", address+":1")
	return expect(errors.Is(err, syscall.ECONNREFUSED), "%v", err)
}

func reset() error {
	listener := listen("0")
	defer listener.Close()
	go func() {
		client, err := listener.Accept()
		check(err)
		client.Read(make([]byte, 1))
		client.(*net.TCPConn).SetLinger(0)
		client.Close()
	}()
	there, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return err
	}
	defer there.Close()
	there.Write([]byte("x"))
	_, err = there.Read(make([]byte, 1))
	return expect(errors.Is(err, syscall.ECONNRESET), "%v", err)
}

func main() {
	// `ask` from another host, `all` from the same.
	if role == "serve" {
		serve()
	}
	checks := []struct {
		name string
		do   func() error
		own  bool // cannot be asked of another host
	}{
		{"one connection for many requests", one, false}, {"many connections at a time", many, false},
		{"a new connection each time", fresh, false}, {"large bodies both ways, by sendfile", large, false},
		{"TLS", secured, false}, {"HTTP/2, many streams on one connection", streams, false},
		{"half-closed through a relay, by splice", relayed, false}, {"a deadline", deadline, false},
		{"a refused port", refused, true}, {"a reset", reset, true},
	}
	for _, c := range checks {
		if c.own && role == "ask" {
			fmt.Println("skip", c.name)
			continue
		}
		if err := c.do(); err != nil {
			fmt.Printf("not ok %s: %s\n", c.name, strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("ok", c.name)
		}
	}
}
