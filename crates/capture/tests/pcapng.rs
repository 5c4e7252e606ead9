//! A file is read as it was written, by our reader and by tshark.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::Command;
use towpath_capture::pcapng::read::{Wrong, read};
use towpath_capture::pcapng::{Interface, Packet, Writer, packet_options};

fn frame(length: usize) -> Vec<u8> {
    let mut frame = vec![0; length.max(14)];
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

fn written(packets: &[Packet]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "towpath 1.2").unwrap();
    for name in ["eth1", "direct"] {
        let interface =
            Interface { name: name.into(), description: "for a test".into(), filter: "tcp".into(), snap: 96 };
        writer.interface(&interface).unwrap();
    }
    for Packet { interface, time_ns, outgoing, length, bytes, comment } in packets {
        writer.frame(*interface, *time_ns, *length, bytes, &packet_options(comment, *outgoing)).unwrap();
    }
    writer.statistics(1, 7, 100, 3).unwrap();
    writer.into_inner().unwrap()
}

fn packets() -> Vec<Packet> {
    let packet = |length: usize, outgoing, comment: &str| Packet {
        interface: (length % 2) as u32,
        time_ns: 1_700_000_000_123_456_789 + length as u64,
        outgoing,
        length: 1000,
        bytes: frame(length),
        comment: comment.into(),
    };
    vec![
        packet(60, Some(true), "curl (pid 7, uid 1000) 10.0.0.1:4000 - 10.0.0.2:80"),
        packet(61, Some(false), ""),
        packet(62, None, "é"),
        packet(63, None, "four"),
    ]
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let file = read(&written(&packets())).unwrap();
    assert_eq!(file.packets, packets());
    assert_eq!(file.application, "towpath 1.2");
    assert_eq!((file.interfaces[1].name.as_str(), file.interfaces[1].filter.as_str()), ("direct", "tcp"));
    assert_eq!((file.interfaces[0].snap, &file.statistics), (96, &vec![(1, 100, 3)]));
}

/// Takes a part of what is written at a time.
#[derive(Default)]
struct Slow(Vec<u8>);

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let some = bytes.len().min(70_001);
        self.0.extend(&bytes[..some]);
        Ok(some)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_of_many_frames_is_whole_also_before_its_end() {
    let mut writer = Writer::new(Slow::default(), "towpath").unwrap();
    writer.interface(&Interface::default()).unwrap();
    // More than is written together.
    let bytes = frame(60_000);
    for number in 1..=20 {
        writer.frame(0, number, 60_000, &bytes, &packet_options("", None)).unwrap();
    }
    writer.flush().unwrap();
    writer.frame(0, 21, 60_000, &bytes, &packet_options("the last", None)).unwrap();
    let file = read(&writer.into_inner().unwrap().0).unwrap();
    assert!(file.packets.iter().map(|packet| packet.time_ns).eq(1..=21));
    assert!(file.packets.iter().all(|packet| packet.bytes == bytes));
}

#[test]
fn a_file_that_was_cut_off_ends_with_its_last_whole_block() {
    let bytes = written(&packets());
    let mut last = 0;
    for end in 28..bytes.len() {
        let found = read(&bytes[..end]).unwrap().packets.len();
        assert!(found >= last);
        last = found;
    }
    assert_eq!(last, 4);
    assert_eq!(read(b"not such a file").unwrap_err(), Wrong::Format);
    let mut torn = bytes;
    torn[4] += 4;
    assert_eq!(read(&torn).unwrap_err(), Wrong::Block(0));
}

#[test]
fn tshark_reads_times_comments_and_directions() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("tshark is missing: apt-get install -y tshark");
        return;
    }
    let path = std::env::temp_dir().join(format!("towpath-pcapng-{}", std::process::id()));
    std::fs::write(&path, written(&packets())).unwrap();
    let fields = ["frame.time_epoch", "frame.len", "frame.cap_len", "frame.comment", "frame.interface_name"];
    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "fields", "-E", "separator=|", "-r"]).arg(&path);
    for field in fields {
        command.args(["-e", field]);
    }
    let out = command.output().unwrap();
    std::fs::remove_file(&path).unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "1700000000.123456849|1000|60|curl (pid 7, uid 1000) 10.0.0.1:4000 - 10.0.0.2:80|eth1",
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert_eq!(lines[3], "1700000000.123456852|1000|63|four|direct");
}

#[test]
fn fuzz_pcapng() {
    bolero::check!().with_type::<Vec<(u16, u8)>>().with_iterations(5_000).for_each(|edits| {
        let mut bytes = written(&packets());
        for (at, byte) in edits.iter().take(8) {
            let at = usize::from(*at) % bytes.len();
            bytes[at] = *byte;
        }
        let _ = read(&bytes);
    });
}
