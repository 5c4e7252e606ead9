//! What a service does that the application must know. `Hello` has those that the library knows, `Welcome` those that the
//! service has. A service refuses (EPROTO) a library that does not know one of its own. A library may know more.

/// A listener's descriptor stays the kernel's own listening socket. The stack takes the first SYNs that reach it from
/// served interfaces; the kernel accepts all else. `Reserve` carries a listening socket then.
pub const LISTENS_IN_KERNEL: u32 = 1;
/// The stack has the network of one network namespace, and serves sockets of no other. `Welcome` names it.
pub const ONE_NAMESPACE: u32 = 2;
/// The service has stacks for other network namespaces, which `StackOf` finds.
pub const OTHER_NAMESPACES: u32 = 4;
/// A client makes the memory of its region, and the service only checks it (`Make`, `Region`). So the kernel charges the
/// memory to whom it serves.
pub const CLIENT_MEMORY: u32 = 8;
/// Only of a library: its process has little room for addresses. Its region has none to grow rings in.
pub const SMALL_REGION: u32 = 16;
/// All that this version knows.
pub const ALL: u32 = LISTENS_IN_KERNEL | ONE_NAMESPACE | OTHER_NAMESPACES | CLIENT_MEMORY;

/// What speaks against a library with `version` and these features at a service with its own; `None` = they fit.
pub fn mismatch((version, known): (u32, u32), (own, needed): (u32, u32)) -> Option<String> {
    let unknown = needed & !known;
    if version != own {
        Some(format!("the library speaks version {version} of the contract and the service version {own}"))
    } else if unknown != 0 {
        Some(format!("the library does not know features {unknown:#x} of the service"))
    } else {
        None
    }
}
