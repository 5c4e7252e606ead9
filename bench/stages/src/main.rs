//! The stages of one connection: `count PAYLOAD FRAMES` for callgrind, where functions are counted whose names end in `_turn`, and
//! `time PAYLOAD ROUNDS MILLISECONDS`. A program of its own: what is compiled once more for it changes no other figure.

mod pipeline;
mod stream;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["count", payload, frames] => match (payload.parse(), frames.parse()) {
            (Ok(payload), Ok(frames)) => Some(pipeline::stages(payload, frames).map(|(_, frames)| {
                pipeline::count_whole(payload, frames);
                format!("{{\"requests\":{frames}}}")
            })),
            _ => None,
        },
        ["time", payload, rounds, milliseconds] => match (payload.parse(), rounds.parse(), milliseconds.parse()) {
            (Ok(payload), Ok(rounds), Ok(milliseconds)) => Some(pipeline::run(payload, rounds, milliseconds)),
            _ => None,
        },
        _ => None,
    };
    match done {
        Some(Ok(report)) => println!("{report}"),
        Some(Err(error)) => {
            eprintln!("towpath-stages: {error}");
            std::process::exit(1);
        }
        None => {
            eprintln!("usage: towpath-stages count PAYLOAD FRAMES | time PAYLOAD ROUNDS MILLISECONDS");
            std::process::exit(2);
        }
    }
}
