// An HTTP server and its clients in one program; prints one line per check.
'use strict';
const http = require('http'), https = require('https'), net = require('net'), fs = require('fs'), crypto = require('crypto');
const [address, port, tlsPort, role, rounds, key, cert] = process.argv.slice(2);

const sha = data => crypto.createHash('sha256').update(data).digest('hex');

function answer(request, response) {
  const hash = crypto.createHash('sha256');
  let bytes = 0;
  request.on('data', piece => { hash.update(piece); bytes += piece.length; });
  request.on('end', () => {
    if (request.url.startsWith('/bytes/')) return response.end(Buffer.alloc(Number(request.url.slice(7)), 'node'));
    response.end(`${request.url} ${bytes} ${hash.digest('hex')}`);
  });
}

function serve() {
  const plain = http.createServer({ keepAlive: true }, answer);
  const tls = https.createServer({ key: fs.readFileSync(key), cert: fs.readFileSync(cert) }, answer);
  plain.listen({ host: address, port: Number(port), backlog: 1000 }, () => tls.listen(Number(tlsPort), address, () => console.log('listening')));
}

function ask(module, options, body) {
  return new Promise((resolve, reject) => {
    const request = module.request({ host: address, method: body ? 'POST' : 'GET', rejectUnauthorized: false, ...options }, response => {
      const pieces = [];
      response.on('data', piece => pieces.push(piece));
      response.on('end', () => resolve(Buffer.concat(pieces)));
      response.on('error', reject);
    });
    request.on('error', reject);
    request.end(body);
  });
}

const checks = {
  async 'one connection for many requests'() {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    const sockets = new Set();
    agent.on('free', socket => sockets.add(socket));
    for (let i = 0; i < rounds; i++) {
      const said = await ask(http, { port, agent, path: `/${i}` }, 'x'.repeat(i));
      if (String(said) !== `/${i} ${i} ${sha('x'.repeat(i))}`) return String(said);
    }
    agent.destroy();
    return sockets.size === 1 || `${sockets.size} connections`;
  },
  async 'many connections at a time'() {
    const agent = new http.Agent({ keepAlive: true, maxSockets: Infinity });
    const paths = Array.from({ length: 200 }, (_, i) => `/many/${i}`);
    const said = await Promise.all(paths.map(path => ask(http, { port, agent, path })));
    agent.destroy();
    return said.every((text, i) => String(text).startsWith(`${paths[i]} 0 `));
  },
  async 'a new connection each time'() {
    for (let i = 0; i < rounds; i++) await ask(http, { port, agent: false, path: `/once/${i}` });
    return true;
  },
  async 'large bodies both ways'() {
    const body = crypto.randomBytes(3000000);
    const up = String(await ask(http, { port, path: '/up' }, body));
    const down = await ask(http, { port, path: '/bytes/5000000' });
    return up === `/up 3000000 ${sha(body)}` && sha(down) === sha(Buffer.alloc(5000000, 'node')) || up;
  },
  'pipelined requests': () => new Promise((resolve, reject) => {
    const socket = net.connect(port, address, () => {
      for (let i = 0; i < 100; i++) socket.write(`GET /pipe/${i} HTTP/1.1\r\nHost: x\r\n${i === 99 ? 'Connection: close\r\n' : ''}\r\n`);
    });
    let text = '';
    socket.on('data', piece => { text += piece; });
    socket.on('error', reject);
    socket.on('end', () => {
      const seen = [...text.matchAll(/\/pipe\/(\d+) /g)].map(found => Number(found[1]));
      resolve(seen.length === 100 && seen.every((n, i) => n === i) || text.slice(0, 300));
    });
  }),
  async 'TLS'() {
    const agent = new https.Agent({ keepAlive: true });
    const body = crypto.randomBytes(1000000);
    for (let i = 0; i < Math.min(rounds, 20); i++) {
      const said = String(await ask(https, { port: tlsPort, agent, path: '/tls' }, body));
      if (said !== `/tls 1000000 ${sha(body)}`) return said;
    }
    agent.destroy();
    return true;
  },
  'a refused port': () => new Promise(resolve => {
    net.connect(1, address).on('error', error => resolve(error.code === 'ECONNREFUSED' || error.code)).on('connect', () => resolve('connected'));
  }),
  'a reset': () => new Promise(resolve => {
    const server = net.createServer(socket => socket.resetAndDestroy());
    server.listen(0, address, () => {
      const socket = net.connect(server.address().port, address, () => socket.write('x'));
      socket.on('error', error => { server.close(); resolve(error.code === 'ECONNRESET' || error.code); });
      socket.resume();
      socket.on('end', () => resolve('ended'));
    });
  }),
};

// Checks that need both ends on one host.
const own = ['a refused port', 'a reset'];

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

// `ask` from another host, `all` from the same.
role === 'serve' ? serve() : run();
