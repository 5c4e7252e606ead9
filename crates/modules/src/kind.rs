//! Kinds of maps.

/// The kinds of maps that modules have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Values by number.
    Array,
    /// An array for each flow group.
    PerCpuArray,
    /// Values by key.
    Hash,
    /// Values by key, each with a copy for each flow group.
    PerCpuHash,
    /// A hash; a full one forgets what was not used for long.
    LruHash,
    /// Both.
    LruPerCpuHash,
    /// Values by the longest prefix of a key.
    LpmTrie,
    /// Records for a reader.
    RingBuf,
    /// Programs by number, for tail calls.
    ProgArray,
    /// Interfaces by number, for frames that go over another one.
    DevMap,
    /// Interfaces by key.
    DevMapHash,
}

impl MapKind {
    const ALL: [(u32, Self, &'static str); 11] = [
        (1, Self::Hash, "hash"),
        (2, Self::Array, "array"),
        (3, Self::ProgArray, "prog_array"),
        (5, Self::PerCpuHash, "percpu_hash"),
        (6, Self::PerCpuArray, "percpu_array"),
        (9, Self::LruHash, "lru_hash"),
        (10, Self::LruPerCpuHash, "lru_percpu_hash"),
        (11, Self::LpmTrie, "lpm_trie"),
        (14, Self::DevMap, "devmap"),
        (25, Self::DevMapHash, "devmap_hash"),
        (27, Self::RingBuf, "ringbuf"),
    ];
    /// By the kernel's number.
    pub fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, ..)| *known == number).map(|(_, kind, _)| kind)
    }
    /// All names.
    pub fn names() -> [&'static str; 11] {
        Self::ALL.map(|(.., name)| name)
    }
    fn entry(self) -> (u32, Self, &'static str) {
        Self::ALL.into_iter().find(|(_, kind, _)| *kind == self).unwrap_or((0, self, "?"))
    }
    /// The kernel's number.
    pub fn number(self) -> u32 {
        self.entry().0
    }
    /// The name, as bpftool says it.
    pub fn name(self) -> &'static str {
        self.entry().2
    }
    /// Does it have interfaces?
    pub fn is_of_devices(self) -> bool {
        matches!(self, Self::DevMap | Self::DevMapHash)
    }
    /// Has it a copy of each value for each flow group?
    pub fn is_per_cpu(self) -> bool {
        matches!(self, Self::PerCpuArray | Self::PerCpuHash | Self::LruPerCpuHash)
    }
}

/// The kernel's name of a kind, also of one that modules do not have.
pub fn kind_name(kind: u32) -> &'static str {
    let names = [
        "unspec",
        "hash",
        "array",
        "prog_array",
        "perf_event_array",
        "percpu_hash",
        "percpu_array",
        "stack_trace",
        "cgroup_array",
        "lru_hash",
        "lru_percpu_hash",
        "lpm_trie",
        "array_of_maps",
        "hash_of_maps",
        "devmap",
        "sockmap",
        "cpumap",
        "xskmap",
        "sockhash",
        "cgroup_storage",
        "reuseport_sockarray",
        "percpu_cgroup_storage",
        "queue",
        "stack",
        "sk_storage",
        "devmap_hash",
        "struct_ops",
        "ringbuf",
        "inode_storage",
        "task_storage",
        "bloom_filter",
        "user_ringbuf",
        "cgrp_storage",
        "arena",
    ];
    names.get(kind as usize).copied().unwrap_or("unknown")
}
