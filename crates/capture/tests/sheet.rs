//! What a capture writes of what the threads of a service have left.
#![allow(clippy::unwrap_used)]

use rustix::fd::AsFd;
use towpath_capture::pcapng::read::{File, read};
use towpath_capture::pcapng::{Interface, Writer};
use towpath_capture::record::{DIRECT, Header, Kind, Name};
use towpath_capture::tap::MOST_SNAP;
use towpath_capture::{Memory, Reader, Sheet, Wish};
use towpath_rng::Rng;

fn sheet(interfaces: usize, most: Option<u64>) -> Sheet<Vec<u8>> {
    let mut writer = Writer::new(Vec::new(), "towpath").unwrap();
    (0..interfaces).for_each(|_| writer.interface(&Interface::default()).unwrap());
    Sheet::new(writer, interfaces, most)
}

fn file(sheet: Sheet<Vec<u8>>) -> File {
    read(&sheet.into_inner().unwrap()).unwrap()
}

fn header(place: u16, time_ns: u64) -> Header {
    Header { kind: Kind::Frame { outgoing: time_ns.is_multiple_of(2) }, place, time_ns, length: 9000 }
}

#[test]
fn frames_of_all_threads_are_written_in_the_order_of_their_times_once_they_are_due() {
    let (memory, mut writers) = Memory::new(3, 0).unwrap();
    let (mut reader, mut sheet, mut rng) = (Reader::new(memory.as_fd()).unwrap(), sheet(3, None), Rng::new(5));
    let mut left = Vec::new();
    for round in 1..=200u64 {
        let mut batches: Vec<_> = writers.iter_mut().map(|writer| writer.batch()).collect();
        for _ in 0..rng.below(20) {
            let (ring, time_ns) = (rng.below(3) as u16, 1000 * round + rng.below(1000));
            let bytes = vec![time_ns as u8; rng.below(300) as usize];
            batches[usize::from(ring)].leave(header(ring, time_ns), &bytes);
            left.push((ring, time_ns, bytes));
        }
        drop(batches);
        sheet.take(&mut reader);
        sheet.write(1000 * round.saturating_sub(3)).unwrap();
        let due = left.iter().filter(|(_, time_ns, _)| *time_ns <= 1000 * round.saturating_sub(3)).count();
        assert_eq!(sheet.written().0, due as u64, "round {round}");
    }
    sheet.write(u64::MAX).unwrap();
    // Of one time, in any order.
    let mut written: Vec<_> =
        file(sheet).packets.into_iter().map(|packet| (packet.interface as u16, packet.time_ns, packet.bytes)).collect();
    assert!(written.is_sorted_by_key(|(_, time_ns, _)| *time_ns));
    written.sort();
    left.sort();
    assert!(written == left);
}

#[test]
fn a_place_that_no_port_has_is_the_last_interface_and_no_more_is_written_than_is_wanted() {
    let (memory, mut writers) = Memory::new(1, 0).unwrap();
    let (mut reader, mut sheet) = (Reader::new(memory.as_fd()).unwrap(), sheet(3, Some(2)));
    for (time_ns, place) in [(1, 1), (2, DIRECT), (3, 0)] {
        writers[0].batch().leave(header(place, time_ns), &[1; 60]);
    }
    assert!(sheet.take(&mut reader) && !sheet.is_full());
    sheet.write(u64::MAX).unwrap();
    assert!(sheet.is_full() && !sheet.take(&mut reader));
    sheet.end(9, 3, 1).unwrap();
    let file = file(sheet);
    let written: Vec<_> =
        file.packets.iter().map(|packet| (packet.interface, packet.outgoing, packet.length)).collect();
    assert_eq!(written, [(1, Some(false), 9000), (2, None, 9000)]);
    assert_eq!(file.statistics, [(0, 3, 1)]);
}

/// A frame waits for the name that comes behind it.
#[test]
fn a_name_that_comes_before_a_frame_is_due_stands_in_its_comment() {
    let (memory, mut writers) = Memory::new(2, 1 << 20).unwrap();
    let (mut reader, mut sheet) = (Reader::new(memory.as_fd()).unwrap(), sheet(2, None));
    let [local, remote] = ["10.0.0.1:4000", "10.0.0.2:80"].map(|end| end.parse().unwrap());
    towpath_capture::conversation::Conversation::opens([local, remote], |frame| {
        writers[0].batch().leave(header(1, 2), frame);
    });
    sheet.take(&mut reader);
    sheet.write(1).unwrap();
    let wish = Wish { filter: None, snap: 96, bytes: 0 };
    let mut tap = towpath_capture::Tap::new(writers.remove(1), &wish);
    tap.name(&Name { local, remote, pid: 7, uid: 0, program: "curl".into() });
    sheet.take(&mut reader);
    sheet.write(2).unwrap();
    let file = file(sheet);
    assert_eq!(file.packets.len(), 3);
    assert_eq!(file.packets[0].comment, "curl (pid 7, uid 0) 10.0.0.1:4000 > 10.0.0.2:80");
}

/// At most 64 MiB are held. The service's ring keeps the rest until there is room again.
#[test]
fn if_too_much_waits_it_is_written_before_it_is_due_and_nothing_is_lost() {
    const FRAMES: u64 = 300;
    let (memory, mut writers) = Memory::new(1, 128 << 20).unwrap();
    let (mut reader, mut sheet) = (Reader::new(memory.as_fd()).unwrap(), sheet(1, None));
    let bytes = vec![7; MOST_SNAP as usize];
    for time_ns in 1..=FRAMES {
        writers[0].batch().leave(header(0, time_ns), &bytes);
    }
    assert_eq!(reader.counts(), (FRAMES, 0));
    assert!(sheet.take(&mut reader));
    sheet.write(0).unwrap();
    let first = sheet.written().0;
    assert!((150..FRAMES).contains(&first), "{first}");
    assert!(sheet.take(&mut reader));
    sheet.write(0).unwrap();
    assert_eq!(sheet.written().0, first, "there is room for all of the rest");
    sheet.write(u64::MAX).unwrap();
    assert_eq!(sheet.written(), (FRAMES, FRAMES * u64::from(MOST_SNAP)));
    assert!(!sheet.take(&mut reader));
    assert!(file(sheet).packets.iter().map(|packet| packet.time_ns).eq(1..=FRAMES));
}
