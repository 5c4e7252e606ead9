//! The BPF programs are loaded on each kernel: this host's, and in a guest Linux 6.12. Each kernel's verifier follows a program by
//! rules of its own, so what one takes another may refuse.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd};
use towpath_ports::attachment::{AttachConfig, Attachment};
use towpath_ports::steering::{SteerMode, Steering};
use towpath_system_tests::{Program, booted, own_network, require_root};

/// The one that the guest runs.
const HERE: &str = "every_program_is_loaded_and_attached_on_this_kernel";

#[test]
fn every_program_is_loaded_and_attached_on_this_kernel() {
    require_root();
    own_network();
    for line in ["link add eth1 type veth peer name eth2", "link set eth1 up", "link set eth2 up"] {
        Program::line(&format!("ip {line}")).run(60).ok();
    }
    for mode in [SteerMode::Packet, SteerMode::Driver, SteerMode::Generic] {
        // The XDP programs and the filter of listeners are loaded in each mode. The others are: the filter of packet sockets and the
        // program behind it, which also sends on what is spliced, and the one that takes SYNs before the firewall.
        let how = AttachConfig { mode: Some(mode), own: true, tagged: false };
        let attachment = Attachment::open("eth1", how, 1).unwrap_or_else(|error| panic!("{mode}: {error}"));
        let description = attachment.description();
        assert_eq!(description.mode, mode);
        assert!(attachment.is_in_place() && description.programs.iter().all(|number| *number != 0), "{description:?}");
        let (mut steering, _) = Steering::over("eth1", attachment.parts().unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        attach(&listener, steering.listening().filter());
    }
}

/// Puts the filter of listeners on a socket.
fn attach(listener: &TcpListener, filter: BorrowedFd<'_>) {
    let number = filter.as_raw_fd();
    // SAFETY: the number lives during the call, which reads its bytes.
    let result = unsafe {
        let value = (&raw const number).cast();
        libc::setsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_BPF, value, size_of::<i32>() as u32)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
#[ignore = "boots a guest: scripts/setup guest; make test-slow"]
fn every_program_is_loaded_and_attached_on_linux_6_12() {
    require_root();
    let kernel = booted::newer_kernel();
    let program = std::env::current_exe().expect("own path");
    let said = booted::run(&kernel, "kernels.sh", &[program.as_os_str(), HERE.as_ref()], 600);
    assert!(said.line("release").starts_with("6.12."), "{}", said.whole());
    assert_eq!(said.line("ended"), "0", "{}", said.whole());
}
