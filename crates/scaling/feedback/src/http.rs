//! One page of an HTTP server.

use crate::endpoint::Endpoint;
use crate::stream::{Conversation, line};
use std::io::{self, BufRead, ErrorKind};

/// Longest line of the head.
const LINE: u64 = 8192;
/// Most such lines.
const LINES: usize = 256;

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}

/// Asks for a page, and reads it to its end.
///
/// The request is HTTP/1.0: the server closes the connection at the end, and sends no chunks (RFC 9112 §6.1).
pub(crate) fn page(endpoint: &Endpoint, path: &str) -> io::Result<String> {
    let mut conversation = Conversation::open(endpoint)?;
    let question =
        format!("GET {path} HTTP/1.0\r\nHost: {endpoint}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n");
    page_of(conversation.ask(question.as_bytes())?)
}

/// The page of an answer. It is an error if the answer is not HTTP, its status is not 200, or the page is encoded.
pub fn page_of(answer: &mut impl BufRead) -> io::Result<String> {
    let status = line(answer, LINE)?;
    let mut words = status.split_whitespace();
    if !words.next().is_some_and(|version| version.starts_with("HTTP/1.")) || words.next() != Some("200") {
        return Err(invalid(&format!("the answer is: {status}")));
    }
    for _ in 0..LINES {
        let field = line(answer, LINE)?.to_ascii_lowercase();
        if field.is_empty() {
            let mut page = Vec::new();
            answer.read_to_end(&mut page)?;
            return String::from_utf8(page).map_err(|_| invalid("the page is no text"));
        }
        if field.starts_with("transfer-encoding:") || field.starts_with("content-encoding:") {
            return Err(invalid(&format!("the page is not as it was asked for: {field}")));
        }
    }
    Err(invalid("the answer's head has no end"))
}
