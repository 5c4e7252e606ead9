//! A process that serves after another one sees how that one ended.
#![allow(clippy::unwrap_used, missing_docs)]

use towpath_recorder::{self as recorder, Entry, Kind, Which};

/// Keys of the events, by thread.
fn keys(which: Which) -> Vec<(String, Vec<u64>)> {
    let of = |one: recorder::Recorded| (one.thread, one.events.iter().map(|event| event.key).collect());
    recorder::read(which).into_iter().map(of).collect()
}

/// A process that serves, records these and dies.
fn process_that_records(keys: &[u64]) {
    // SAFETY: the child calls only what makes no use of locks that another thread may hold: this test is the only one of its
    // program, and its runner waits meanwhile.
    match unsafe { libc::fork() } {
        0 => {
            recorder::take_over();
            recorder::begin("fast-0");
            for key in keys {
                recorder::turn(*key);
                recorder::record(&Entry::new(Kind::Connect, *key));
            }
            // SAFETY: the process ends, as by a signal.
            unsafe { libc::abort() };
        }
        child => {
            assert!(child > 0);
            // SAFETY: a null pointer takes no status.
            assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
        }
    }
}

#[test]
fn a_successor_reads_the_events_of_the_process_before_and_of_no_other() {
    recorder::open(2, &[]).unwrap();
    recorder::inherit(true).unwrap();
    let fast = |keys: &[u64]| vec![("fast-0".to_owned(), keys.to_vec())];
    process_that_records(&[1, 2]);
    process_that_records(&[3]);
    recorder::take_over();
    assert_eq!((keys(Which::Own), keys(Which::Predecessor)), (vec![], fast(&[3])));
    for name in ["fast-0", "slow", "one more than planned"] {
        let record = move || {
            recorder::begin(name);
            recorder::record(&Entry::new(Kind::Connect, 4));
        };
        std::thread::spawn(record).join().unwrap();
    }
    let own = vec![("fast-0".to_owned(), vec![4]), ("slow".to_owned(), vec![4])];
    assert_eq!((keys(Which::Own), keys(Which::Predecessor)), (own, fast(&[3])));
}
