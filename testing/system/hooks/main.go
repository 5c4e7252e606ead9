// An HTTP server and its clients in one program. Prints "done" if all answers are right.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	hello := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %d", r.URL.Path, len(body))
	}
	go http.Serve(listener, http.HandlerFunc(hello))
	var all sync.WaitGroup
	for client := 0; client < 8; client++ {
		all.Add(1)
		go func(client int) {
			defer all.Done()
			for round := 0; round < 50; round++ {
				path := fmt.Sprintf("/%d/%d", client, round)
				body := strings.NewReader(strings.Repeat("x", 100000))
				reply, err := http.Post("http://"+listener.Addr().String()+path, "text/plain", body)
				check(err)
				text, err := io.ReadAll(reply.Body)
				check(err)
				reply.Body.Close()
				if string(text) != path+" 100000" {
					check(fmt.Errorf("wrong answer %q", text))
				}
			}
		}(client)
	}
	all.Wait()
	out, err := exec.Command("echo", "child").CombinedOutput()
	check(err)
	_, err = net.DialTimeout("tcp", "127.0.0.1:1", time.Second)
	own, _ := os.Executable()
	fmt.Print(string(out), own, "\n", err, "\n", "done\n")
}
