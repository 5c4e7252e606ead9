import hashlib, http.client, http.server

big = bytes(range(256)) * 8000


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(big)))
        self.end_headers()
        self.wfile.write(big)

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()


def client():
    connection = http.client.HTTPConnection(*server.server_address)
    for _ in range(5):
        connection.request("GET", "/")
        check(connection.getresponse().read() == big)
    connection.close()


threads = [threading.Thread(target=client) for _ in range(6)]
[t.start() for t in threads]
[t.join() for t in threads]
server.shutdown()
print("done")
