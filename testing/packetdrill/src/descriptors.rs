//! The application's descriptors.

use std::collections::BTreeMap;
use towpath_sim::SocketId;
use towpath_tcp::flow::SocketOptions;

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorKind {
    /// A socket that neither listens nor is connected.
    Fresh,
    /// A listener.
    Listener(SocketId),
    /// A connection, or an attempt.
    Stream(SocketId),
    /// An epoll instance.
    Epoll,
}

/// A descriptor.
#[derive(Clone, Debug)]
pub struct Descriptor {
    /// Its kind.
    pub kind: DescriptorKind,
    /// `O_NONBLOCK`.
    pub nonblocking: bool,
    /// Port that it is bound to, 0 = none.
    pub port: u16,
    /// `SO_LINGER` with time 0: close by RST.
    pub abort: bool,
    /// `TCP_CORK`.
    pub cork: bool,
    /// `TCP_NODELAY`.
    pub nodelay: bool,
    /// The options that the slow path handles.
    pub options: SocketOptions,
    /// Has the connection's error been reported?
    pub told: bool,
    /// Bytes read so far.
    pub read: u32,
    /// Sequence number of the first byte read, in the script's numbers.
    pub first: Option<u32>,
    /// Are bytes not compared, as urgent data may be missing in the stream?
    pub urgent: bool,
    /// The interest list of an epoll instance: descriptor, events, data.
    pub interest: Vec<(i64, i64, i64)>,
}

impl Descriptor {
    fn new(kind: DescriptorKind) -> Self {
        Self {
            kind,
            nonblocking: false,
            port: 0,
            abort: false,
            cork: false,
            nodelay: false,
            options: SocketOptions::default(),
            told: false,
            read: 0,
            first: None,
            urgent: false,
            interest: Vec::new(),
        }
    }
}

/// All descriptors.
#[derive(Debug, Default)]
pub struct Descriptors(BTreeMap<i64, Descriptor>);

impl Descriptors {
    /// Opens a descriptor, with the number that the script expects if that is free.
    pub fn open(&mut self, kind: DescriptorKind, wanted: Option<i64>) -> i64 {
        let wanted = wanted.filter(|fd| *fd > 2 && !self.0.contains_key(fd));
        let fd = wanted.or_else(|| (3..).find(|fd| !self.0.contains_key(fd))).unwrap_or(i64::MAX);
        self.0.insert(fd, Descriptor::new(kind));
        fd
    }

    /// By number.
    pub fn get_mut(&mut self, fd: i64) -> Option<&mut Descriptor> {
        self.0.get_mut(&fd)
    }

    /// By number.
    pub fn get(&self, fd: i64) -> Option<&Descriptor> {
        self.0.get(&fd)
    }

    /// Closes a descriptor.
    pub fn close(&mut self, fd: i64) -> Option<Descriptor> {
        self.0.remove(&fd)
    }

    /// The port of the first listener.
    pub fn listening_port(&self) -> Option<u16> {
        self.0.values().find(|d| matches!(d.kind, DescriptorKind::Listener(_))).map(|d| d.port)
    }
}
