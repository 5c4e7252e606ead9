//! A position in a script's text.

use crate::script::ScriptError;

/// A position in a script's text.
pub struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor at the beginning.
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Its line, counted from 1.
    pub fn line(&self) -> usize {
        1 + self.text[..self.at].matches('\n').count()
    }

    /// The remaining text.
    pub fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Is it at the end?
    pub fn done(&self) -> bool {
        self.at == self.text.len()
    }

    /// A syntax error at this position.
    pub fn wrong(&self, what: impl Into<String>) -> ScriptError {
        ScriptError::Syntax { line: self.line(), what: what.into() }
    }

    /// Skips white space and comments.
    pub fn skip(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            let end = if trimmed.starts_with("//") {
                trimmed.find('\n').unwrap_or(trimmed.len())
            } else if trimmed.starts_with("/*") {
                trimmed.find("*/").map_or(trimmed.len(), |end| end + 2)
            } else {
                return;
            };
            self.at += end;
        }
    }

    /// Takes `word`, after white space, if it comes next.
    pub fn take(&mut self, word: &str) -> bool {
        self.skip();
        let found = self.rest().starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    /// Takes `word`, which must come next.
    pub fn expect(&mut self, word: &str) -> Result<(), ScriptError> {
        if self.take(word) { Ok(()) } else { Err(self.wrong(format!("'{word}' expected before '{}'", self.ahead()))) }
    }

    /// Takes characters as long as `of` holds.
    pub fn take_while(&mut self, of: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !of(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Takes a name, after white space; empty if none comes next.
    pub fn name(&mut self) -> &'a str {
        self.skip();
        if self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            return "";
        }
        self.take_while(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    /// Takes the text up to `end`, and `end`.
    pub fn until(&mut self, end: &str) -> Result<&'a str, ScriptError> {
        let rest = self.rest();
        let Some(len) = rest.find(end) else { return Err(self.wrong(format!("'{end}' is missing"))) };
        self.at += len + end.len();
        Ok(&rest[..len])
    }

    /// Takes the rest of the line, without a comment.
    pub fn rest_of_line(&mut self) -> &'a str {
        let line = self.take_while(|c| c != '\n');
        line.split("//").next().unwrap_or("").trim()
    }

    /// The next few characters, for messages.
    pub fn ahead(&self) -> String {
        self.rest().chars().take_while(|c| *c != '\n').take(20).collect()
    }
}
