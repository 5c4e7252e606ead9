//! Any bytes that a server answers lead to possible values, or to none.

use std::time::Duration;
use towpath_feedback::{
    Reading, Selection, histogram_of_redis, outcome_of, page_of_http, reading_of_memcached, reading_of_redis, reply_of,
};

/// Words of answers, so that some of the bytes make sense.
const WORDS: [&str; 32] = [
    "# Commandstats\r\n",
    "cmdstat_get:",
    "calls=",
    "usec=",
    ",",
    "\r\n",
    "\n",
    " ",
    "STAT cmd_get ",
    "STAT cmd_set ",
    "ops",
    "_bucket",
    "_sum",
    "_count",
    "{",
    "}",
    "le=\"",
    "quantile=\"0.99\"",
    "+Inf",
    "NaN",
    "1e308",
    "18446744073709551615",
    "-1",
    "0.5",
    "*2\r\n",
    "$3\r\nget\r\n",
    "$14\r\nhistogram_usec\r\n",
    ":7\r\n",
    "thr=",
    "lat_us=",
    "# TYPE ops gauge\n",
    "\\\"",
];

fn text(words: &[u8], noise: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| WORDS[usize::from(*word) % WORDS.len()].bytes()).collect();
    for (nth, byte) in noise.iter().enumerate().take(4) {
        let at = (nth * 37 + usize::from(*byte)) % (bytes.len() + 1);
        bytes.insert(at, *byte);
    }
    bytes
}

/// Checks that the outcome of two readings is possible.
fn check(before: Option<Reading>, after: Option<Reading>) {
    let (Some(before), Some(after)) = (before, after) else { return };
    if let Some(outcome) = after.since(&before, Duration::from_secs(1)) {
        let numbers = [outcome.throughput, outcome.latency_us, outcome.p99_us];
        assert!(numbers.iter().all(|number| (0.0..1e15).contains(number)), "{outcome:?} of {before:?} and {after:?}");
    }
}

#[test]
fn fuzz_answers_of_servers() {
    let selections: Vec<Selection> = ["name=ops", "name=ops{le=\"0.5\"}&latency=ops&unit=us", "name=ops&latency=other"]
        .iter()
        .filter_map(|text| text.parse().ok())
        .collect();
    assert_eq!(selections.len(), 3);
    type Answers = (Vec<u8>, Vec<u8>, Vec<u8>);
    bolero::check!().with_type::<Answers>().with_iterations(10_000).for_each(|(first, second, noise)| {
        let (first, second) = (text(first, &[]), text(second, noise));
        let histogram = |bytes: &[u8]| {
            let mut reading = reading_of_redis("# Commandstats\n")?;
            reading.buckets = histogram_of_redis(&reply_of(&mut &*bytes).ok()?);
            Some(reading)
        };
        check(histogram(&first), histogram(&second));
        let (first, second) = (String::from_utf8_lossy(&first), String::from_utf8_lossy(&second));
        check(reading_of_redis(&first), reading_of_redis(&second));
        check(reading_of_memcached(&first), reading_of_memcached(&second));
        for selection in &selections {
            check(selection.of(&first), selection.of(&second));
        }
        if let Some(outcome) = outcome_of(&second) {
            assert!((0.0..1e15).contains(&outcome.throughput) && outcome.p99_us.is_finite());
        }
        let _ = second.parse::<Selection>();
        let _ = second.parse::<towpath_feedback::Address>();
    });
}

/// Words of web servers' answers.
const HEADS: [&str; 14] = [
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.0 200\n",
    "HTTP/1.1 404 Not Found\r\n",
    "HTTP/2 200\r\n",
    "Content-Length: 18446744073709551615\r\n",
    "Transfer-Encoding: chunked\r\n",
    "content-encoding: gzip\r\n",
    "X: y\r\n",
    "\r\n",
    "\n",
    "\r",
    ":",
    "ops 7\n",
    "ops_bucket{le=\"+Inf\"} 7\n",
];

#[test]
fn fuzz_answers_of_web_servers() {
    let selection: Selection = "name=ops".parse().expect("a selection");
    let whole = b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nops 7\n";
    assert!(page_of_http(&mut &whole[..]).is_ok_and(|page| selection.of(&page).is_some()));
    bolero::check!().with_type::<(bool, Vec<u8>, Vec<u8>)>().with_iterations(10_000).for_each(
        |(begins, words, noise)| {
            let words = words.iter().map(|word| HEADS[usize::from(*word) % HEADS.len()]);
            let mut bytes: Vec<u8> = begins.then_some(HEADS[0]).into_iter().chain(words).flat_map(str::bytes).collect();
            for (nth, byte) in noise.iter().enumerate().take(2) {
                let at = (nth * 37 + usize::from(*byte)) % (bytes.len() + 1);
                bytes.insert(at, *byte);
            }
            match page_of_http(&mut &*bytes) {
                Ok(page) => {
                    assert!(bytes.ends_with(page.as_bytes()), "the page is all that comes after the head");
                    let _ = selection.of(&page);
                }
                // The server's words go to logs.
                Err(error) => assert!(error.to_string().len() < 10_000, "{error}"),
            }
        },
    );
}

#[test]
fn an_answer_whose_head_has_no_end_is_read_no_further_than_its_bound() {
    let endless = |line: &str| line.repeat(10_000_000 / line.len());
    for text in ["HTTP/1.1 200 OK\r\n".to_owned() + &endless("X: y\r\n"), endless("HTTP/1.1 200 ")] {
        let mut rest = text.as_bytes();
        assert!(page_of_http(&mut rest).is_err());
        assert!(text.len() - rest.len() < 1 << 20, "{} bytes were read", text.len() - rest.len());
    }
}
