// A server on a selector and its clients, blocking and with a selector of their own; prints one line per check.
import java.io.*;
import java.net.*;
import java.net.http.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.util.*;
import java.util.concurrent.*;

public class Nio {
    static String address;
    static int port;

    public static void main(String[] words) throws Exception {
        address = words[0];
        port = Integer.parseInt(words[1]);
        int rounds = Integer.parseInt(words[3]);
        if (words[2].equals("serve")) {
            serve();
            return;
        }
        check("blocking sockets in threads", () -> blocking(rounds));
        check("many channels on one selector", () -> selecting(100, rounds));
        check("channels that wait", () -> waiting(4_000_000));
        check("asynchronous channels", () -> asynchronous(rounds));
        check("HTTP by its own server and client", () -> http(rounds, words[2].equals("all")));
        check("a time limit", Nio::limit);
        System.exit(0);
    }

    interface Check { Object run() throws Exception; }

    static void check(String name, Check check) {
        Object outcome;
        try {
            outcome = check.run();
        } catch (Throwable thrown) {
            StringWriter text = new StringWriter();
            thrown.printStackTrace(new PrintWriter(text));
            outcome = text.toString().replace('\n', ' ');
        }
        System.out.println(Boolean.TRUE.equals(outcome) ? "ok " + name : "not ok " + name + ": " + outcome);
    }

    // The echo server, which has one thread.
    static void serve() throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(address, port), 500);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        System.out.println("listening");
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                try {
                    if (key.isAcceptable()) {
                        SocketChannel channel = listener.accept();
                        if (channel == null) continue;
                        channel.configureBlocking(false);
                        channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(65536));
                        continue;
                    }
                    echo(key);
                } catch (IOException | CancelledKeyException ended) {
                    key.channel().close();
                }
            }
            selector.selectedKeys().clear();
        }
    }

    static void echo(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        if (key.isReadable() && channel.read(buffer) < 0 && buffer.position() == 0) {
            channel.close();
            return;
        }
        buffer.flip();
        channel.write(buffer);
        buffer.compact();
        int wanted = (buffer.position() > 0 ? SelectionKey.OP_WRITE : 0) | (buffer.hasRemaining() ? SelectionKey.OP_READ : 0);
        key.interestOps(wanted);
    }

    static byte[] content(int size, int seed) {
        byte[] bytes = new byte[size];
        new Random(seed).nextBytes(bytes);
        return bytes;
    }

    static Object blocking(int rounds) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(8);
        List<Future<Boolean>> all = new ArrayList<>();
        for (int n = 0; n < 8; n++) {
            int seed = n;
            all.add(threads.submit(() -> {
                try (Socket socket = new Socket(address, port)) {
                    socket.setTcpNoDelay(true);
                    byte[] sent = content(3000, seed);
                    for (int i = 0; i < rounds; i++) {
                        socket.getOutputStream().write(sent);
                        if (!Arrays.equals(sent, socket.getInputStream().readNBytes(sent.length))) return false;
                    }
                    socket.shutdownOutput();
                    return socket.getInputStream().read() == -1;
                }
            }));
        }
        boolean good = true;
        for (Future<Boolean> one : all) good &= one.get(60, TimeUnit.SECONDS);
        threads.shutdown();
        return good;
    }

    static Object selecting(int count, int rounds) throws Exception {
        Selector selector = Selector.open();
        for (int n = 0; n < count; n++) {
            SocketChannel channel = SocketChannel.open();
            channel.configureBlocking(false);
            channel.connect(new InetSocketAddress(address, port));
            channel.register(selector, SelectionKey.OP_CONNECT, new int[] {n, 0, 0});
        }
        int open = count;
        ByteBuffer reply = ByteBuffer.allocate(1000);
        while (open > 0) {
            if (selector.select(20_000) == 0) return open + " are left";
            for (SelectionKey key : selector.selectedKeys()) {
                SocketChannel channel = (SocketChannel) key.channel();
                int[] state = (int[]) key.attachment();
                if (key.isConnectable()) {
                    channel.finishConnect();
                } else {
                    reply.clear();
                    int got = channel.read(reply);
                    if (got <= 0) return "read " + got;
                    state[2] += got;
                    if (state[2] < 100) continue;
                    state[2] = 0;
                    if (++state[1] == rounds) {
                        channel.close();
                        open--;
                        continue;
                    }
                }
                channel.write(ByteBuffer.wrap(content(100, state[0])));
                key.interestOps(SelectionKey.OP_READ);
            }
            selector.selectedKeys().clear();
        }
        return true;
    }

    static Object waiting(int size) throws Exception {
        byte[] sent = content(size, 1), got = new byte[size];
        try (SocketChannel channel = SocketChannel.open(new InetSocketAddress(address, port))) {
            Thread writer = new Thread(() -> {
                try {
                    ByteBuffer rest = ByteBuffer.wrap(sent);
                    while (rest.hasRemaining()) channel.write(rest);
                    channel.shutdownOutput();
                } catch (IOException thrown) {
                    throw new UncheckedIOException(thrown);
                }
            });
            writer.start();
            ByteBuffer into = ByteBuffer.wrap(got);
            while (into.hasRemaining() && channel.read(into) >= 0) { }
            writer.join();
            return Arrays.equals(sent, got) && channel.read(ByteBuffer.allocate(1)) == -1;
        }
    }

    static Object asynchronous(int rounds) throws Exception {
        try (AsynchronousSocketChannel channel = AsynchronousSocketChannel.open()) {
            channel.connect(new InetSocketAddress(address, port)).get(20, TimeUnit.SECONDS);
            for (int i = 0; i < rounds; i++) {
                byte[] sent = content(500, i);
                ByteBuffer out = ByteBuffer.wrap(sent), in = ByteBuffer.allocate(500);
                while (out.hasRemaining()) channel.write(out).get(20, TimeUnit.SECONDS);
                while (in.hasRemaining()) if (channel.read(in).get(20, TimeUnit.SECONDS) < 0) return "ended";
                if (!Arrays.equals(sent, in.array())) return "other bytes";
            }
        }
        return true;
    }

    static Object http(int rounds, boolean here) throws Exception {
        if (!here) return true;
        com.sun.net.httpserver.HttpServer server = com.sun.net.httpserver.HttpServer.create(new InetSocketAddress(address, 0), 100);
        server.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(200, body.length == 0 ? -1 : body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
        HttpClient client = HttpClient.newHttpClient();
        URI uri = URI.create("http://" + address + ":" + server.getAddress().getPort() + "/");
        for (int i = 0; i < rounds; i++) {
            byte[] sent = content(2000 + i, i);
            HttpRequest request = HttpRequest.newBuilder(uri).POST(HttpRequest.BodyPublishers.ofByteArray(sent)).build();
            if (!Arrays.equals(sent, client.send(request, HttpResponse.BodyHandlers.ofByteArray()).body())) return "other bytes";
        }
        server.stop(0);
        return true;
    }

    static Object limit() throws Exception {
        try (Socket socket = new Socket(address, port)) {
            socket.setSoTimeout(100);
            try {
                socket.getInputStream().read();
                return "came back";
            } catch (SocketTimeoutException expected) {
                socket.getOutputStream().write(7);
                socket.setSoTimeout(20_000);
                return socket.getInputStream().read() == 7;
            }
        }
    }
}
