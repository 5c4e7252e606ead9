//! Fuzzing of input from interfaces and the command line: nothing makes the relay panic, and a frame that is cut keeps
//! all of its payload. The mutated frames are those of `towpath-wire`'s corpus.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use towpath_impair::frame::{Unfinished, finish, flip_bits, insert_tag};
use towpath_impair::{Impairments, Lane, units};
use towpath_rng::Rng;
use towpath_wire::parse;

fn corpus() -> Vec<Vec<u8>> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../crates/wire/tests/corpus/frames");
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 30, "{files:?}");
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Passes a frame with unfinished work through [`finish`], and the pieces through the other operations.
fn through(frame: &[u8], unfinished: Unfinished, tag: Option<u16>) -> Option<Vec<Vec<u8>>> {
    let mut pieces = Vec::new();
    let mut bytes = frame.to_vec();
    let done = finish(&mut bytes, unfinished, |piece| pieces.push(piece.to_vec()));
    for piece in &mut pieces {
        if let Some(tag) = tag {
            insert_tag(piece, tag);
        }
        flip_bits(&mut piece.clone(), &mut Rng::new(1));
    }
    done.then_some(pieces)
}

#[test]
fn fuzz_relayed_frames() {
    let frames = corpus();
    type Edit = (u8, u8);
    type What = (Option<(u16, u16)>, u16, Option<u16>);
    bolero::check!().with_type::<(u8, Vec<Edit>, Option<u8>, What)>().with_iterations(10_000).for_each(
        |(nth, edits, len, (checksum, segment_bytes, tag))| {
            let mut frame = frames[usize::from(*nth) % frames.len()].clone();
            if let Some(len) = len {
                frame.resize(usize::from(*len), 0xcc);
            }
            for (at, byte) in edits.iter().take(6).filter(|_| !len.is_some_and(|len| len == 0)) {
                let at = usize::from(*at) % frame.len();
                frame[at] = *byte;
            }
            through(&frame, Unfinished { checksum: *checksum, segment_bytes: *segment_bytes % 64 }, *tag);
            let mut lane = Lane::new(Impairments::default(), 1);
            lane.put(0, &frame);
            assert_eq!(lane.pop(u64::MAX), Some(frame));
        },
    );
}

#[test]
fn a_frame_of_the_corpus_that_is_cut_keeps_its_payload() {
    let mut cut = 0;
    for frame in corpus() {
        let Ok(whole) = parse(&frame) else { continue };
        let payload = |frame: &[u8]| {
            let s = parse(frame).unwrap();
            frame[s.payload_offset as usize..][..s.payload_len as usize].to_vec()
        };
        if whole.payload_len > 0 {
            let pieces = through(&frame, Unfinished { checksum: None, segment_bytes: 3 }, None).unwrap();
            assert_eq!(pieces.iter().flat_map(|piece| payload(piece)).collect::<Vec<u8>>(), payload(&frame));
            cut += 1;
        }
    }
    assert!(cut > 5, "{cut} frames have payload");
}

#[test]
fn fuzz_relay_units() {
    let words =
        ["1%", "0.01", "10ms", "1.5us", "100mbit", "2.5Gbit", "256k", "1500b", "-1s", "1e9s", "nan", "inf%", "é"];
    bolero::check!().with_type::<(u8, u8, Option<char>, String)>().with_iterations(5_000).for_each(
        |(nth, at, with, tail)| {
            let mut text: Vec<char> = words[usize::from(*nth) % words.len()].chars().collect();
            if let Some(with) = with {
                let at = usize::from(*at) % text.len();
                text[at] = *with;
            }
            for text in [text.iter().collect::<String>(), tail.clone()] {
                assert!(
                    units::share(&text).is_ok_and(|ppm| ppm <= 1_000_000) || units::share(&text).is_err(),
                    "{text:?}"
                );
                let _ = (units::time(&text), units::bytes(&text));
                assert_ne!(units::rate(&text), Ok(0), "{text:?}");
            }
        },
    );
}
