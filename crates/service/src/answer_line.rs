//! Answers of the control interface as text.

use crate::api::Answer;
use serde::Serialize;

/// An answer, as JSON without a line feed.
pub fn good<T: Serialize>(answer: &T) -> String {
    serde_json::to_string(answer).unwrap_or_else(|why| error(why.to_string()))
}

/// A refusal.
pub fn error(error: String) -> String {
    serde_json::to_string(&Answer::<()>::Error { error }).unwrap_or_default()
}
