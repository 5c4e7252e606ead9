//! What threads record, as others read it. All tests share the memory of this process; each has threads of its own.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use towpath_recorder::{self as recorder, End, Entry, Event, Kind, Message, NONE, Which};

fn opened() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| recorder::open(32, &["truncated", "paws"]).unwrap());
}

/// What a thread of this name records by this.
fn recorded(name: &'static str, record: impl FnOnce() + Send + 'static) -> Vec<Event> {
    opened();
    let thread = move || {
        recorder::begin(name);
        record();
    };
    std::thread::spawn(thread).join().unwrap();
    events(name)
}

fn events(name: &str) -> Vec<Event> {
    recorder::read(Which::Own).into_iter().find(|one| one.thread == name).unwrap().events
}

#[test]
fn an_event_comes_back_as_it_was_recorded() {
    let ends = Some(("10.0.0.1:80".parse().unwrap(), "[fd77::2]:4312".parse().unwrap()));
    let end =
        Entry { flag: End::GivenUp as u8, flow_group: 3, value: (9, 110), ends, ..Entry::new(Kind::End, 7 << 32 | 11) };
    let all = recorded("whole", move || {
        recorder::turn(100);
        recorder::record(&end);
        recorder::turn(250);
        recorder::drop(1);
        recorder::drop(99);
        recorder::wake(4, 4711);
        recorder::long_turn(0, 200, 12_345, 6);
    });
    assert_eq!(all[0], Event { at_us: 100, since_us: 100, times: 1, entry: end });
    assert_eq!((all[0].socket(), all[0].flow(), all[0].client()), (Some((7, 11)), Some(9), Some(7)));
    let text: Vec<String> = all.iter().map(ToString::to_string).collect();
    for expected in [
        "over: the stack has ended it (Connection timed out), client 7 slot 11, flow 9, 10.0.0.1:80 - [fd77::2]:4312",
        "dropped: paws",
        "dropped: ?",
        "client 4 (process 4711) woken",
        "a turn took 12345 us, with 6 items of work",
    ] {
        assert!(text.iter().any(|text| text == expected), "{expected} is missing in {text:?}");
    }
}

#[test]
fn the_same_event_again_is_counted_and_takes_no_place() {
    let message = |flow: u64, which: Message| {
        let key = flow | (which as u64) << 32;
        recorder::record(&Entry { flag: which as u8, ..Entry::new(Kind::Message, key) });
    };
    let all = recorded("again", move || {
        for at in 1..=1000 {
            recorder::turn(at);
            message(5, Message::ProbeWindow);
        }
        message(5, Message::Reset);
        message(6, Message::Reset);
    });
    let seen: Vec<_> = all.iter().map(|event| (event.since_us, event.at_us, event.times, event.flow())).collect();
    assert_eq!(seen, [(1, 1000, 1000, Some(5)), (1000, 1000, 1, Some(5)), (1000, 1000, 1, Some(6))]);
    let text = "the peer's window is closed, and probed, flow 5, 1000 times in 999 us";
    assert_eq!(all[0].to_string(), text);
}

#[test]
fn a_flood_of_one_sort_hides_nothing_of_another() {
    let all = recorded("flood", || {
        recorder::record(&Entry::new(Kind::Close, 1));
        recorder::record(&Entry::new(Kind::Client, 2));
        for at in 0..100_000 {
            recorder::turn(at);
            recorder::record(&Entry::new(Kind::Timeout, at));
            recorder::drop((at % 2) as usize);
            recorder::wake((at % 3) as u32, 1);
        }
    });
    let count = |kind| all.iter().filter(|event| event.kind == kind).count();
    assert_eq!((count(Kind::Close), count(Kind::Client), count(Kind::Drop), count(Kind::Wake)), (1, 1, 2, 3));
    assert_eq!(count(Kind::Timeout), 256);
    let timeouts: Vec<u64> = all.iter().filter(|event| event.kind == Kind::Timeout).map(|event| event.key).collect();
    assert_eq!(timeouts, (99_744..100_000).collect::<Vec<_>>(), "the newest, in their order");
    let drops: Vec<_> =
        all.iter().filter(|event| event.kind == Kind::Drop).map(|event| (event.key, event.times)).collect();
    assert_eq!(drops, [(0, 50_000), (1, 50_000)]);
}

#[test]
fn who_comes_and_goes_breaks_the_contract_or_makes_much_work_hides_no_panic() {
    let all = recorded("at will", || {
        let at_will = |kind| (1..1000).for_each(|key| recorder::record(&Entry::new(kind, key)));
        recorder::record(&Entry::new(Kind::Panic, 0));
        recorder::long_turn(0, 0, 12_345, 6);
        recorder::record(&Entry::new(Kind::Violation, 0));
        for key in 1..1000 {
            recorder::record(&Entry::new(Kind::Client, key));
            recorder::record(&Entry::new(Kind::ClientGone, key));
        }
        let before = recorder::panicked(NONE);
        for kind in [Kind::Panic, Kind::LongTurn, Kind::Violation] {
            assert!(before.iter().any(|event| event.kind == kind && event.key == 0), "{kind:?}");
        }
        at_will(Kind::Violation);
        recorder::drop(0);
        at_will(Kind::LongTurn);
    });
    let count = |kind| all.iter().filter(|event| event.kind == kind).count();
    assert_eq!([Kind::Panic, Kind::Violation, Kind::LongTurn].map(count), [1, 256, 256]);
    assert_eq!([Kind::Client, Kind::ClientGone].map(count), [128, 128]);
}

#[test]
fn who_breaks_the_contract_again_and_again_hides_nobody_else_who_does() {
    let all = recorded("violations", || {
        recorder::record(&Entry::new(Kind::Violation, 7));
        for _ in 0..1000 {
            recorder::record(&Entry::new(Kind::Violation, 1));
            recorder::record(&Entry::new(Kind::Violation, 2));
        }
    });
    let mut found: Vec<_> = all.iter().map(|event| (event.kind, event.key, event.times)).collect();
    found.sort_unstable_by_key(|(_, key, _)| *key);
    assert_eq!(found, [1, 2, 7].map(|key| (Kind::Violation, key, if key == 7 { 1 } else { 1000 })));
}

#[test]
fn a_panic_is_told_what_was_before() {
    let all = recorded("panic", || {
        recorder::turn(7);
        recorder::record(&Entry::new(Kind::Connect, 1));
        let before = recorder::panicked(2);
        assert!(before.len() == 1 && before[0].kind == Kind::Connect, "{before:?}");
    });
    assert_eq!((all[1].kind, all[1].flow_group, all[1].at_us), (Kind::Panic, 2, 7));
}

#[test]
fn a_thread_that_has_not_begun_records_nothing() {
    opened();
    recorder::turn(1);
    recorder::drop(0);
    assert_eq!(recorder::panicked(NONE), []);
}

#[test]
fn a_reader_sees_whole_events_while_they_are_written() {
    opened();
    let ends = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&ends);
    let writer = std::thread::spawn(move || {
        recorder::begin("torn");
        let mut number = 0_u32;
        while !over.load(Ordering::Relaxed) {
            number += 1;
            recorder::turn(number.into());
            // All parts of an event have the same number.
            recorder::record(&Entry { value: (number, number), ..Entry::new(Kind::Timeout, number.into()) });
            recorder::wake(1, number.cast_signed());
        }
    });
    let mut seen = 0;
    while seen < 100_000 {
        let all = recorder::read(Which::Own).into_iter().find(|one| one.thread == "torn");
        for event in all.into_iter().flat_map(|one| one.events) {
            seen += 1;
            let number = u64::from(event.value.0);
            match event.kind {
                Kind::Timeout => {
                    assert!(event.at_us == number && event.key == number && u64::from(event.value.1) == number);
                }
                kind => assert!(kind == Kind::Wake && event.at_us == number && u64::from(event.times) == number),
            }
        }
    }
    ends.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}
