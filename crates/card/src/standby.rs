//! A card that stands by: this host's kernel serves, and all clients can be moved into the card and back, with their connections. Their
//! regions are in the card's memory from the beginning; what only a kernel knows of a connection goes as a record, through `TCP_REPAIR`.
//! The address of the connections moves too: it is the host's or the card's, never both's.

use crate::host::{Card, CardConfig, CardError};
use crate::inner::ANSWER;
use crate::message::{FromCard, ToCard};
use crate::pieces;
use crate::place::{Bells, Near, Renamed};
use crate::places::{Served, lock};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};
use towpath_kernel::{Kernel, KernelConfig, Moved};
use towpath_ring::Geometry;
use towpath_ring::wake::doorbell;
use towpath_stack::{
    ClientId, ClientSetup, Connection, Cores, Executed, Ground, Guard, Movement, PairHandle, Stack, Status,
};

/// How it is set up.
pub struct StandbyConfig {
    /// The card. Its address is the one that moves.
    pub card: CardConfig,
    /// This host's part.
    pub kernel: KernelConfig,
    /// The device that has the address while this host serves.
    pub device: String,
}

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Host,
    Card,
}

/// A client's numbers and doorbells.
struct Known {
    place: u32,
    client: Arc<Served>,
    doorbells: Vec<OwnedFd>,
    /// Its number on this host, while it is here.
    near: Option<ClientId>,
}

/// Both of them.
pub struct Standby {
    host: Kernel,
    card: Card,
    side: RwLock<Side>,
    clients: Mutex<HashMap<ClientId, Known>>,
    /// By their numbers on this host.
    names: Arc<Mutex<HashMap<ClientId, ClientId>>>,
    bells: Bells,
    /// `10.0.0.2/24`.
    address: String,
    gateway: Option<String>,
    device: String,
}

/// How long connections are waited for that have been closed and are not over.
const SETTLE: Duration = Duration::from_millis(500);

/// A line of `/proc/net/tcp`: has its socket a FIN, and perhaps more, to send until the peer has it?
fn is_sending_its_last(line: &str) -> bool {
    // FIN-WAIT-1, LAST-ACK, CLOSING.
    matches!(line.split_whitespace().nth(3), Some("04" | "09" | "0B"))
}

fn line(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// What a client has left where it was.
struct OnTheWay {
    id: ClientId,
    moved: Vec<Moved>,
    reservations: Vec<(u32, u32, OwnedFd)>,
}

impl Standby {
    /// Starts both; this host serves.
    pub fn start(config: StandbyConfig, guard: impl Fn() -> Box<dyn Guard>) -> Result<Self, CardError> {
        let StandbyConfig { mut card, kernel, device } = config;
        let none = || CardError::Broken("a card that stands by needs an address to move (--card-address)".into());
        // It gets it when it is to serve.
        let address = card.machine.address.take().ok_or_else(none)?;
        let gateway = card.machine.gateway.take();
        // As many as this host's kernel has for it.
        card.machine.cores = 1;
        let card = Card::start(card, guard())?;
        card.inner.serves.store(false, Ordering::Release);
        let names = Arc::<Mutex<HashMap<_, _>>>::default();
        // The numbers of several threads would not be told apart.
        let kernel = KernelConfig { cores: 1, ..kernel };
        let host = Kernel::start(&kernel, || Box::new(Renamed { guard: guard(), names: Arc::clone(&names) }))?;
        let bells = Bells::start(Arc::clone(&card.inner))?;
        let (side, clients) = (RwLock::new(Side::Host), Mutex::default());
        let standby = Self { host, card, side, clients, names, bells, address, gateway, device };
        standby.give_address(Side::Host)?;
        Ok(standby)
    }

    fn side(&self) -> RwLockReadGuard<'_, Side> {
        self.side.read().unwrap_or_else(PoisonError::into_inner)
    }
    /// A client's number on this host.
    fn near(&self, client: ClientId) -> Option<ClientId> {
        lock(&self.clients).get(&client)?.near
    }
    /// Has the one who serves do something for a client.
    fn serve(&self, client: ClientId, host: impl FnOnce(&Kernel, ClientId), card: impl FnOnce(&Card)) {
        match *self.side() {
            Side::Card => card(&self.card),
            Side::Host => {
                if let Some(near) = self.near(client) {
                    host(&self.host, near);
                }
            }
        }
    }
    /// The address without its prefix length: a /32 or /128 on this host, where the network behind it is somebody else's.
    fn alone(&self) -> &str {
        self.address.split('/').next().unwrap_or_default()
    }

    /// The card's network card.
    fn wire(&self) -> &'static str {
        crate::guest::interface(self.card.inner.kind())
    }
    /// Runs a program there.
    fn run(&self, side: Side, words: &[String]) -> io::Result<Vec<u8>> {
        let (program, rest) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let (code, out, err) = match side {
            Side::Host => {
                let done = Command::new(program).args(rest).output()?;
                (done.status.code(), done.stdout, done.stderr)
            }
            Side::Card => {
                let done = self.card.execute(words)?;
                (Some(done.code), done.out, done.err)
            }
        };
        if code == Some(0) {
            return Ok(out);
        }
        Err(io::Error::other(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&err).trim())))
    }
    /// What gives the card the address, with a route.
    fn in_the_card(&self) -> Vec<Vec<String>> {
        let address = ["ip", "address", "replace", &self.address, "dev", self.wire()];
        let mut lines = vec![line(&["ip", "link", "set", self.wire(), "up"]), line(&address)];
        lines.extend(self.gateway.iter().map(|via| line(&["ip", "route", "replace", "default", "via", via])));
        lines
    }
    fn give_address(&self, side: Side) -> io::Result<()> {
        match side {
            Side::Host => {
                self.run(side, &line(&["ip", "address", "replace", self.alone(), "dev", &self.device])).map(drop)
            }
            Side::Card => self.in_the_card().iter().try_for_each(|words| self.run(side, words).map(drop)),
        }
    }
    fn take_address(&self, side: Side) -> io::Result<()> {
        let words = match side {
            Side::Host => line(&["ip", "address", "del", self.alone(), "dev", &self.device]),
            Side::Card => line(&["ip", "address", "del", &self.address, "dev", self.wire()]),
        };
        self.run(side, &words).map(drop)
    }
    /// Waits a little for connections that programs have closed and their kernel is still sending: those stay where they are.
    fn settle(&self, side: Side) {
        let until = Instant::now() + SETTLE;
        while Instant::now() < until {
            match self.run(side, &line(&["cat", "/proc/net/tcp", "/proc/net/tcp6"])) {
                Ok(table) if String::from_utf8_lossy(&table).lines().any(is_sending_its_last) => {}
                _ => return,
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Moves everybody.
    fn carry(&self, from: Side, to: Side) -> io::Result<Movement> {
        if to == Side::Card {
            if self.card.inner.dead.load(Ordering::Acquire) {
                return Err(io::Error::from_raw_os_error(libc::ENETDOWN));
            }
            // The wire is there before it is needed.
            self.run(to, &line(&["ip", "link", "set", self.wire(), "up"]))?;
        }
        self.settle(from);
        let since = Instant::now();
        // Packets that come while nobody has the address are lost, as they may be at any time, and not answered.
        self.take_address(from)?;
        let mut movement = Movement::default();
        let mut clients = lock(&self.clients);
        self.prune(&mut clients);
        let mut given: Vec<(&mut Known, OnTheWay)> = Vec::new();
        // What keeps this host from answering; the card has its own.
        let mut shields = Vec::new();
        for (id, known) in clients.iter_mut() {
            let (on_the_way, lost) = match from {
                Side::Host => self.give_near(*id, known, &mut shields),
                Side::Card => self.give_far(*id, known),
            };
            movement.lost += lost;
            movement.clients += 1;
            movement.connections += on_the_way.moved.len();
            given.push((known, on_the_way));
        }
        self.card.inner.serves.store(to == Side::Card, Ordering::Release);
        *lock(&self.card.inner.at_revival) = if to == Side::Card { self.in_the_card() } else { Vec::new() };
        for (known, on_the_way) in &mut given {
            if let Err(error) = self.adopt(to, known, on_the_way) {
                tracing::error!(%error, client = known.client.name, "a client could not move");
            }
        }
        if let Err(error) = self.give_address(to) {
            tracing::error!(%error, "the address could not move");
        }
        for (known, on_the_way) in given {
            movement.lost += self.land(to, known, on_the_way);
        }
        drop(shields);
        movement.took_us = since.elapsed().as_micros() as u64;
        Ok(movement)
    }

    /// Forgets those who are gone.
    fn prune(&self, clients: &mut HashMap<ClientId, Known>) {
        clients.retain(|id, known| self.card.inner.places.of(known.place).is_some_and(|client| client.id == *id));
    }
    fn give_near(&self, id: ClientId, known: &mut Known, shields: &mut Vec<OwnedFd>) -> (OnTheWay, usize) {
        let Some(near) = known.near.take() else {
            return (OnTheWay { id, moved: Vec::new(), reservations: Vec::new() }, 0);
        };
        known.client.moving.store(true, Ordering::Release);
        let given = self.host.give(near);
        lock(&self.names).remove(&near);
        shields.extend(given.shields);
        (OnTheWay { id, moved: given.moved, reservations: given.reservations }, given.lost)
    }
    fn give_far(&self, id: ClientId, known: &Known) -> (OnTheWay, usize) {
        known.client.moving.store(true, Ordering::Release);
        // What the card lets go now is not let go here.
        let reservations = known.client.take_reservations();
        let answer = self.card.inner.ask(ToCard::Give { place: known.place }, ANSWER);
        let moved = self.card.inner.pieces.take(known.place);
        let lost = if let Some(FromCard::Given { lost }) = answer { lost as usize } else { 0 };
        (OnTheWay { id, moved, reservations }, lost)
    }

    fn adopt(&self, to: Side, known: &mut Known, on_the_way: &OnTheWay) -> io::Result<()> {
        let moved: Vec<_> = on_the_way.moved.iter().map(|moved| (moved.slot, moved.record.local)).collect();
        let client = &known.client;
        if to == Side::Card {
            let (uid, pid, name) = (client.uid, client.pid, client.name.clone());
            let adopt = ToCard::Adopt { place: known.place, uid, pid, name, moved };
            return match self.card.inner.ask(adopt, ANSWER) {
                Some(FromCard::Done) => Ok(()),
                Some(FromCard::Failed { errno }) => Err(io::Error::from_raw_os_error(errno)),
                _ => Err(io::Error::from_raw_os_error(libc::ENETDOWN)),
            };
        }
        let near = self.host.adopt(self.setup(known)?, moved)?;
        known.near = Some(near);
        lock(&self.names).insert(near, on_the_way.id);
        Ok(())
    }

    /// The connections of a client arrive; how many do not.
    fn land(&self, to: Side, known: &Known, on_the_way: OnTheWay) -> usize {
        let OnTheWay { moved, reservations, id } = on_the_way;
        let (place, count) = (known.place, moved.len());
        match (to, known.near) {
            (Side::Card, _) => {
                for piece in moved.iter().flat_map(|moved| pieces::cut(place, moved)) {
                    self.card.inner.tell(0, &ToCard::Record(piece));
                }
                let put = self.card.inner.ask(ToCard::Put { place }, ANSWER);
                reservations.into_iter().for_each(|(slot, seq, socket)| self.card.reserve(id, slot, seq, socket));
                for (context, _) in known.client.contexts() {
                    self.card.inner.ask(ToCard::Context { place, context, open: true }, ANSWER);
                }
                self.card.inner.ask(ToCard::Open { place }, ANSWER);
                if let Some(FromCard::Put { failed }) = put { failed as usize } else { count }
            }
            (Side::Host, Some(near)) => {
                let failed = self.host.put(near, moved);
                reservations.into_iter().for_each(|(slot, seq, socket)| self.host.reserve(near, slot, seq, socket));
                for (context, bell) in known.client.contexts() {
                    if let Ok(bell) = bell.try_clone() {
                        self.host.add_context(near, context, bell);
                    }
                }
                self.host.open(near);
                failed
            }
            (Side::Host, None) => count,
        }
    }

    /// For this host.
    fn setup(&self, known: &Known) -> io::Result<ClientSetup> {
        let client = &known.client;
        let doorbells = known.doorbells.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let far = Near { client: Arc::clone(client), inner: Arc::clone(&self.card.inner), place: known.place };
        Ok(ClientSetup {
            region: Arc::clone(&client.region),
            doorbells,
            uid: client.uid,
            pid: client.pid,
            name: client.name.clone(),
            far: Some(Arc::new(far)),
        })
    }
}

impl Stack for Standby {
    fn name(&self) -> &'static str {
        match *self.side() {
            Side::Host => "kernel",
            Side::Card => self.card.name(),
        }
    }
    fn shares_ports(&self) -> bool {
        true
    }
    fn geometry(&self) -> Option<Geometry> {
        self.card.geometry()
    }
    fn ground(&self, _: Geometry) -> io::Result<Ground> {
        self.card.inner.begin(doorbell)
    }
    fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId> {
        let side = self.side();
        self.prune(&mut lock(&self.clients));
        let place = self.card.inner.memory.place(setup.region.offset());
        let place = place.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let doorbells = setup.doorbells.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
        for bell in &doorbells {
            self.bells.watch(bell.as_fd())?;
        }
        if *side == Side::Card {
            let id = self.card.add_client(setup)?;
            let client =
                self.card.inner.places.of(place).ok_or_else(|| io::Error::from_raw_os_error(libc::ENETDOWN))?;
            lock(&self.clients).insert(id, Known { place, client, doorbells, near: None });
            return Ok(id);
        }
        let id = self.card.next_client();
        let client = Arc::new(Served::new(id, setup.region, (setup.uid, setup.pid, setup.name)));
        self.card.inner.places.give(place, Arc::clone(&client));
        let mut known = Known { place, client, doorbells, near: None };
        let near = self.host.add_client(self.setup(&known)?)?;
        known.near = Some(near);
        lock(&self.names).insert(near, id);
        lock(&self.clients).insert(id, known);
        Ok(id)
    }
    fn add_context(&self, client: ClientId, context: u32, bell: OwnedFd) {
        let side = self.side();
        if *side == Side::Card {
            return self.card.add_context(client, context, bell);
        }
        if let (Some((_, served)), Ok(kept)) = (self.card.inner.places.find(client), bell.try_clone()) {
            served.set_context(context, Some(kept));
        }
        if let Some(near) = self.near(client) {
            self.host.add_context(near, context, bell);
        }
    }
    fn drop_context(&self, client: ClientId, context: u32) {
        self.serve(client, |host, near| host.drop_context(near, context), |card| card.drop_context(client, context));
        if let Some((_, served)) = self.card.inner.places.find(client) {
            served.set_context(context, None);
        }
    }
    fn reserve(&self, client: ClientId, slot: u32, seq: u32, socket: OwnedFd) {
        match *self.side() {
            Side::Host => {
                if let Some(near) = self.near(client) {
                    self.host.reserve(near, slot, seq, socket);
                }
            }
            Side::Card => self.card.reserve(client, slot, seq, socket),
        }
    }
    fn hangup(&self, client: ClientId, slot: u32, generation: u32) {
        let near = |host: &Kernel, near| host.hangup(near, slot, generation);
        self.serve(client, near, |card| card.hangup(client, slot, generation));
    }
    fn departed(&self, client: ClientId, process: u32) {
        self.serve(client, |host, near| host.departed(near, process), |card| card.departed(client, process));
    }
    fn remove_client(&self, client: ClientId) {
        self.serve(client, Kernel::remove_client, |card| card.remove_client(client));
    }
    fn pair(&self, _: ClientId, _: u32, _: u32) -> Option<PairHandle> {
        None
    }
    fn connections(&self) -> Vec<Connection> {
        if *self.side() == Side::Card {
            return self.card.connections();
        }
        let mut all = self.host.connections();
        let names = lock(&self.names);
        all.iter_mut().for_each(|one| one.client = one.client.and_then(|near| names.get(&near).copied()));
        all
    }
    fn status(&self) -> Status {
        if *self.side() == Side::Card {
            return self.card.status();
        }
        let mut status = self.host.status();
        let names = lock(&self.names);
        status.clients.retain_mut(|client| match names.get(&client.id) {
            Some(name) => {
                client.id = *name;
                true
            }
            None => false,
        });
        status.slow = self.card.inner.lives_so_far();
        status
    }
    fn cores(&self) -> Cores {
        match *self.side() {
            Side::Host => self.host.cores(),
            Side::Card => self.card.cores(),
        }
    }
    fn set_cores(&self, running: usize) -> io::Result<()> {
        match *self.side() {
            Side::Host => self.host.set_cores(running),
            Side::Card => self.card.set_cores(running),
        }
    }
    /// Kernels know their routes themselves.
    fn network_changed(&self) {}
    fn policy_changed(&self) {
        match *self.side() {
            Side::Host => self.host.policy_changed(),
            Side::Card => self.card.policy_changed(),
        }
    }
    fn execute(&self, words: &[String]) -> io::Result<Executed> {
        match *self.side() {
            Side::Host => self.host.execute(words),
            Side::Card => self.card.execute(words),
        }
    }
    fn move_to(&self, place: &str) -> io::Result<Movement> {
        let to = match place {
            "host" => Side::Host,
            name if name == self.card.name() => Side::Card,
            _ => {
                let why = format!("its places are host and {}", self.card.name());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        };
        let movement = {
            let mut side = self.side.write().unwrap_or_else(PoisonError::into_inner);
            if *side == to {
                return Ok(Movement::default());
            }
            let movement = self.carry(*side, to)?;
            *side = to;
            movement
        };
        self.policy_changed();
        tracing::info!(to = place, ?movement, "moved");
        Ok(movement)
    }
    fn stop(self: Box<Self>) {
        drop(self);
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        if *self.side() == Side::Host
            && let Err(error) = self.take_address(Side::Host)
        {
            tracing::warn!(%error, "the address stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_sending_its_last;

    #[test]
    fn sockets_that_are_not_over_are_told_from_those_that_are() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0207610A:1DD9 024D4D0A:A0B2 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
   2: 0207610A:1DD9 024D4D0A:A0B4 04 00001000:00000000 01:00000014 00000000     0        0 0 2 0 20 4 30 10 -1
   3: 0207610A:1DD9 024D4D0A:A0B6 06 00000000:00000000 03:00000A00 00000000     0        0 0 3 0";
        let last: Vec<bool> = table.lines().map(is_sending_its_last).collect();
        assert_eq!(last, [false, false, false, true, false]);
    }
}
