//! Programs for callgrind: `stages BATCH REQUESTS`, `engine BATCH REQUESTS`, `flood BATCH SYNS`, `library ADDRESS PORT REQUESTS`, `native ADDRESS PORT REQUESTS`,
//! `sends ADDRESS PORT SENDS SERVICE`, `module|capture
//! ingress|egress none|null|removed|all|OBJECT CODE FRAME FRAMES` and `writer FRAME FRAMES`.
//!
//! Only functions whose names end in `_turn` are counted (`--toggle-collect`). The peer and the waiting around them are
//! not.

mod engine;
mod flood;
mod library;
mod modules;
mod native;
mod sends;
mod stages;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // Of modules, whose turns are also timed, without callgrind.
    let mut time = String::new();
    let done = match words[..] {
        [what @ ("stages" | "engine" | "flood"), batch, requests] => match (batch.parse(), requests.parse()) {
            (Ok(batch), Ok(requests)) if what == "engine" => Some(engine::run(batch, requests)),
            (Ok(batch), Ok(syns)) if what == "flood" => Some(flood::run(batch, syns)),
            (Ok(batch), Ok(requests)) => Some(stages::run(batch, requests)),
            _ => None,
        },
        [way @ ("library" | "native"), address, port, requests] => {
            match (address.parse(), port.parse(), requests.parse()) {
                (Ok(address), Ok(port), Ok(requests)) if way == "native" => Some(native::run(address, port, requests)),
                (Ok(address), Ok(port), Ok(requests)) => Some(library::run(address, port, requests)),
                _ => None,
            }
        }
        ["sends", address, port, sends, service] => {
            match (address.parse(), port.parse(), sends.parse(), service.parse()) {
                (Ok(address), Ok(port), Ok(sends), Ok(service)) => Some(sends::run(address, port, sends, service)),
                _ => None,
            }
        }
        [role @ ("module" | "capture"), side @ ("ingress" | "egress"), object, code, frame, frames] => {
            match frames.parse() {
                Ok(frames) => {
                    let role = if role == "module" { modules::Role::Module } else { modules::Role::Capture };
                    let side = if side == "ingress" { modules::Side::Ingress } else { modules::Side::Egress };
                    Some(modules::run(role, side, object, code.as_ref(), frame.as_ref(), frames).map(|cost| {
                        time = format!(",\"nanoseconds\":{}", cost.nanoseconds);
                        cost.frames
                    }))
                }
                Err(_) => None,
            }
        }
        ["writer", frame, frames] => match frames.parse() {
            Ok(frames) => Some(modules::write(frame.as_ref(), frames).map(|cost| cost.frames)),
            Err(_) => None,
        },
        _ => None,
    };
    match done {
        Some(Ok(counted)) => {
            println!("{{\"requests\":{counted}{time}}}");
        }
        Some(Err(error)) => {
            eprintln!("towpath-instructions: {error}");
            std::process::exit(1);
        }
        None => {
            eprintln!(
                "usage: towpath-instructions stages|engine BATCH REQUESTS | flood BATCH SYNS | library|native ADDRESS PORT REQUESTS | sends ADDRESS PORT SENDS SERVICE | module|capture ingress|egress none|null|removed|all|OBJECT CODE FRAME FRAMES | writer FRAME FRAMES"
            );
            std::process::exit(2);
        }
    }
}
