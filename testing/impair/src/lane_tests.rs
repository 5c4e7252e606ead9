#![allow(clippy::unwrap_used)]
use super::*;
use crate::impairments::{Burst, Reorder};

const MS: u64 = 1_000_000;

/// A frame of 1000 bytes with a number in it.
fn numbered(n: u32) -> Vec<u8> {
    let mut frame = vec![0; 1000];
    frame[100..104].copy_from_slice(&n.to_le_bytes());
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_le_bytes(frame[100..104].try_into().unwrap())
}

/// Adds `frames`, one every `gap_ns`, and takes them when they are due: (time, number).
fn through(impairments: Impairments, seed: u64, frames: u32, gap_ns: u64) -> (Vec<(u64, u32)>, Counters) {
    let mut lane = Lane::new(impairments, seed);
    let mut out = Vec::new();
    let mut take = |lane: &mut Lane, until: u64| {
        while let Some(due) = lane.next_due().filter(|&due| due <= until) {
            out.push((due, number(&lane.pop(due).unwrap())));
        }
    };
    for n in 0..frames {
        let now = u64::from(n) * gap_ns;
        take(&mut lane, now);
        lane.put(now, &numbered(n));
    }
    take(&mut lane, u64::MAX);
    assert_eq!(lane.held_bytes(), 0);
    (out, lane.counters())
}

#[test]
fn without_impairments_frames_pass_at_once_and_in_order() {
    let (out, counters) = through(Impairments::default(), 1, 100, 1);
    assert_eq!(out, (0..100).map(|n| (u64::from(n), n)).collect::<Vec<_>>());
    assert_eq!((counters.frames_in, counters.frames_out, counters.bytes_in), (100, 100, 100_000));
}

#[test]
fn loss_keeps_its_rate() {
    for ppm in [100, 1000, 10_000, 50_000] {
        let (out, counters) = through(Impairments { loss_ppm: ppm, ..Impairments::default() }, 2, 200_000, 1);
        let expected = u64::from(ppm) / 5;
        assert_eq!(out.len() as u64 + counters.lost, 200_000);
        // Four standard deviations of a binomial count.
        let tolerance = 4 * expected.isqrt() + 1;
        assert!(counters.lost.abs_diff(expected) <= tolerance, "{} lost at {ppm} ppm", counters.lost);
    }
}

#[test]
fn bursts_have_their_frequency_and_mean_length() {
    let burst = Burst { enter_ppm: 2000, frames: 5, loss_ppm: 1_000_000 };
    let (out, counters) = through(Impairments { burst: Some(burst), ..Impairments::default() }, 3, 500_000, 1);
    assert_eq!(out.len() as u64 + counters.lost_in_bursts, 500_000);
    let length = counters.lost_in_bursts as f64 / counters.bursts as f64;
    assert!((4.5..5.5).contains(&length), "{length} frames");
    assert!((900..1100).contains(&counters.bursts), "{} bursts of about 990", counters.bursts);
}

#[test]
fn which_frames_are_lost_does_not_depend_on_what_else_is_on() {
    let alone = Impairments { loss_ppm: 20_000, ..Impairments::default() };
    let together = Impairments { delay_ns: MS, jitter_ns: MS, duplicate_ppm: 100_000, ..alone };
    let survivors = |impairments| {
        let mut numbers: Vec<u32> = through(impairments, 4, 5000, 1000).0.iter().map(|(_, n)| *n).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    };
    assert!(survivors(alone).len() < 5000);
    assert_eq!(survivors(alone), survivors(together));
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let impairments = Impairments {
        loss_ppm: 10_000,
        burst: Some(Burst { enter_ppm: 1000, frames: 4, loss_ppm: 500_000 }),
        duplicate_ppm: 10_000,
        corrupt_ppm: 10_000,
        rate_bits_per_s: Some(100_000_000),
        queue_bytes: 64 << 10,
        mark_bytes: Some(8 << 10),
        delay_ns: 5 * MS,
        jitter_ns: MS,
        reorder: Some(Reorder { share_ppm: 30_000, extra_ns: 2 * MS }),
    };
    let run = |seed| through(impairments, seed, 3000, 70_000);
    assert_eq!(run(9), run(9));
    assert_ne!(run(9).0, run(10).0);
}

#[test]
fn the_bottleneck_sends_at_its_rate() {
    // At 8 Mbit/s 1000 bytes take 1 ms. They arrive twice as fast.
    let impairments = Impairments { rate_bits_per_s: Some(8_000_000), queue_bytes: 1 << 30, ..Impairments::default() };
    let (out, counters) = through(impairments, 5, 1000, MS / 2);
    assert_eq!((out[0], out[999]), ((MS, 0), (1000 * MS, 999)));
    assert_eq!(counters.queue_full, 0);
}

#[test]
fn a_full_queue_drops_its_tail() {
    let impairments = Impairments { rate_bits_per_s: Some(8_000_000), queue_bytes: 10_000, ..Impairments::default() };
    let (out, counters) = through(impairments, 6, 1000, MS / 2);
    assert_eq!(out.len() as u64 + counters.queue_full, 1000);
    assert!((485..=495).contains(&counters.queue_full), "half, less what the queue holds: {}", counters.queue_full);
    assert!(out.windows(2).all(|pair| pair[0].1 < pair[1].1), "the order is kept");
}

#[test]
fn a_queue_beyond_the_threshold_marks_those_who_know_ecn() {
    let mark = |tos: u8| {
        let impairments = Impairments {
            rate_bits_per_s: Some(8_000_000),
            queue_bytes: 1 << 20,
            mark_bytes: Some(5_000),
            ..Impairments::default()
        };
        let mut lane = Lane::new(impairments, 7);
        let mut frame = vec![0; 1000];
        frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, tos]);
        (0..10).for_each(|_| lane.put(0, &frame));
        let marked = std::iter::from_fn(|| lane.pop(u64::MAX)).filter(|frame| frame[15] & 3 == 3).count() as u64;
        assert_eq!(marked, lane.counters().marked);
        marked
    };
    // Six frames find at most 5000 bytes in the queue.
    assert_eq!(mark(0b10), 4);
    assert_eq!(mark(0b01), 4);
    assert_eq!(mark(0b00), 0, "not ECN-capable: never marked (RFC 3168 §5)");
}

#[test]
fn jitter_keeps_the_order_and_stays_within_its_bounds() {
    let impairments = Impairments { delay_ns: 10 * MS, jitter_ns: 3 * MS, ..Impairments::default() };
    let (out, _) = through(impairments, 8, 1000, 5 * MS);
    for (at, n) in &out {
        let took = at - u64::from(*n) * 5 * MS;
        assert!((10 * MS..=13 * MS).contains(&took), "{took} ns");
    }
    let (out, _) = through(impairments, 8, 1000, MS / 10);
    assert!(out.is_sorted());
    assert!(out.windows(2).all(|pair| pair[0].1 < pair[1].1));
}

#[test]
fn a_share_of_the_frames_is_overtaken() {
    let reorder = Reorder { share_ppm: 30_000, extra_ns: 2 * MS };
    let impairments = Impairments { delay_ns: MS, reorder: Some(reorder), ..Impairments::default() };
    let (out, counters) = through(impairments, 9, 100_000, 100_000);
    assert_eq!(out.len(), 100_000, "nothing is lost");
    assert!((2800..3200).contains(&counters.reordered), "{}", counters.reordered);
    let late = out.iter().filter(|(at, n)| at - u64::from(*n) * 100_000 == 3 * MS).count() as u64;
    assert_eq!(late, counters.reordered);
    assert!(!out.windows(2).all(|pair| pair[0].1 < pair[1].1));
}

#[test]
fn doubled_frames_come_twice() {
    let (out, counters) = through(Impairments { duplicate_ppm: 100_000, ..Impairments::default() }, 10, 10_000, 1);
    assert_eq!(out.len() as u64, 10_000 + counters.duplicated);
    assert!((850..1150).contains(&counters.duplicated), "{}", counters.duplicated);
}

#[test]
fn corruption_changes_a_frame_but_not_its_addresses() {
    let mut lane = Lane::new(Impairments { corrupt_ppm: 1_000_000, ..Impairments::default() }, 11);
    for n in 0..200 {
        lane.put(0, &numbered(n));
        let got = lane.pop(0).unwrap();
        assert_eq!(got[..14], numbered(n)[..14]);
        assert_ne!(got, numbered(n));
    }
    assert_eq!(lane.counters().corrupted, 200);
}

#[test]
fn what_is_held_is_bounded() {
    let mut lane = Lane::new(Impairments { delay_ns: 1000 * MS, ..Impairments::default() }, 12);
    let frame = vec![0; 60_000];
    let fit = HOLD_MAX_BYTES / 60_000;
    (0..fit + 10).for_each(|_| lane.put(0, &frame));
    assert_eq!(lane.counters().queue_full, 10);
}
