// A server and its clients for Bun and Deno, by the interfaces of each: HTTP, HTTPS and WebSocket. Sockets are by Node's `net`.
// Usage: runtime.mjs ADDRESS serve | all ROUNDS | ask ROUNDS (from another host); prints one line per check.
// cert.pem and key.pem are in the current directory.
import crypto from 'node:crypto';
import fs from 'node:fs';
import net from 'node:net';
import process from 'node:process';

const [address, role, rounds] = process.argv.slice(2);
const [port, tlsPort, rawPort] = [8851, 8852, 8853];
const plain = `http://${address}:${port}`, secure = `https://${address}:${tlsPort}`;
const sha = data => crypto.createHash('sha256').update(data).digest('hex');
const bun = globalThis.Bun, deno = globalThis.Deno;

// Server.

async function answer(request, upgrade) {
  const path = new URL(request.url).pathname;
  if (path === '/socket') return upgrade(request);
  if (path.startsWith('/bytes/')) return new Response(Buffer.alloc(Number(path.slice(7)), 'node'));
  if (path === '/stream') {
    let n = 0;
    return new Response(new ReadableStream({
      pull(controller) {
        if (n === 1000) return controller.close();
        controller.enqueue(new TextEncoder().encode(String(n++).padEnd(1000)));
      },
    }));
  }
  const body = Buffer.from(await request.arrayBuffer());
  return new Response(`${path} ${body.length} ${sha(body)}`);
}

function listen(number, files) {
  if (bun) {
    return bun.serve({
      hostname: address, port: number, tls: files, maxRequestBodySize: 1e9,
      fetch: (request, server) => answer(request, request => { server.upgrade(request); }),
      websocket: { message: (socket, text) => { socket.send(text); } },
    });
  }
  return deno.serve({ hostname: address, port: number, ...files, onListen() {} }, request => answer(request, request => {
    const { socket, response } = deno.upgradeWebSocket(request);
    socket.onmessage = event => socket.send(event.data);
    return response;
  }));
}

function serve() {
  listen(port, undefined);
  listen(tlsPort, { key: fs.readFileSync('key.pem', 'utf8'), cert: fs.readFileSync('cert.pem', 'utf8') });
  net.createServer({ allowHalfOpen: true }, socket => socket.pipe(socket)).listen(rawPort, address, () => console.log('listening'));
}

// Clients.

// Deno has a flag for this.
const trust = bun ? { tls: { rejectUnauthorized: false } } : {};

async function ask(base, path, body, more) {
  const response = await fetch(base + path, { method: body !== undefined ? 'POST' : 'GET', body, ...more });
  return Buffer.from(await response.arrayBuffer());
}

function raw(body) {
  return new Promise((resolve, reject) => {
    const pieces = [], socket = net.connect(rawPort, address, () => socket.end(body));
    socket.on('data', piece => pieces.push(piece));
    socket.on('error', reject);
    socket.on('end', () => resolve(Buffer.concat(pieces)));
  });
}

const checks = {
  async 'requests one after the other'() {
    for (let i = 0; i < rounds; i++) {
      const said = String(await ask(plain, `/${i}`, 'x'.repeat(i)));
      if (said !== `/${i} ${i} ${sha('x'.repeat(i))}`) return said;
    }
    return true;
  },
  async 'many requests at a time'() {
    const said = await Promise.all(Array.from({ length: 200 }, (_, i) => ask(plain, `/many/${i}`)));
    return said.every((text, i) => String(text).startsWith(`/many/${i} 0 `));
  },
  async 'a new connection each time'() {
    for (let i = 0; i < rounds; i++) await ask(plain, `/once/${i}`, undefined, { headers: { connection: 'close' } });
    return true;
  },
  async 'large bodies both ways'() {
    const body = crypto.randomBytes(3000000);
    const up = String(await ask(plain, '/up', body)), down = await ask(plain, '/bytes/20000000'), stream = String(await ask(plain, '/stream'));
    return up === `/up 3000000 ${sha(body)}` && sha(down) === sha(Buffer.alloc(20000000, 'node'))
      && stream === Array.from({ length: 1000 }, (_, n) => String(n).padEnd(1000)).join('') || `${up} ${down.length} ${stream.length}`;
  },
  async 'TLS'() {
    const body = crypto.randomBytes(1000000);
    for (let i = 0; i < Math.min(rounds, 20); i++) {
      const said = String(await ask(secure, '/tls', body, trust));
      if (said !== `/tls 1000000 ${sha(body)}`) return said;
    }
    return true;
  },
  'messages over a WebSocket': () => new Promise((resolve, reject) => {
    const socket = new WebSocket(`ws://${address}:${port}/socket`);
    let n = 0;
    socket.onopen = () => socket.send('0');
    socket.onerror = event => reject(new Error(event.message || 'error'));
    socket.onmessage = event => {
      if (event.data !== String(n)) return resolve(`${event.data} instead of ${n}`);
      if (++n < rounds) return socket.send(String(n));
      socket.close();
      resolve(true);
    };
  }),
  async 'sockets, half-closed'() {
    const bodies = Array.from({ length: 20 }, () => crypto.randomBytes(300000));
    const said = await Promise.all(bodies.map(raw));
    return said.every((piece, i) => sha(piece) === sha(bodies[i])) || said.map(piece => piece.length).join(' ');
  },
  'a refused port': () => new Promise(resolve => {
    net.connect(1, address).on('error', error => resolve(error.code === 'ECONNREFUSED' || error.code)).on('connect', () => resolve('connected'));
  }),
};

// Needs both ends on one host.
const own = ['a refused port'];

async function run() {
  for (const [name, check] of Object.entries(checks)) {
    if (role === 'ask' && own.includes(name)) {
      console.log(`skip ${name}`);
      continue;
    }
    const outcome = await Promise.resolve().then(check).catch(error => error.stack);
    console.log(`${outcome === true ? 'ok' : 'not ok'} ${name}${outcome === true ? '' : `: ${outcome}`.replace(/\n/g, ' ')}`);
  }
  process.exit(0);
}

role === 'serve' ? serve() : run();
