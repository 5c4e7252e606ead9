//! Writes a file in which some ranges have another text.

use std::ops::Range;

use serde::Serialize;

/// A part of the text that a site gets.
pub enum Piece {
    Text(String),
    /// A part of the file, in which there may be other sites.
    Source(Range<usize>),
    /// A change: its text, and a number that is named by the compiler's errors about it.
    Change(u32, String),
}

/// A range of the file that is written otherwise. An empty range is an insertion.
pub struct Site {
    pub range: Range<usize>,
    pub pieces: Vec<Piece>,
}

/// What was written where.
#[derive(Serialize)]
pub struct Place {
    pub start: usize,
    pub end: usize,
    pub numbers: Vec<u32>,
}

struct Writer<'a> {
    source: &'a str,
    sites: Vec<Site>,
    text: String,
    places: Vec<Place>,
}

/// The text with all sites. Each site is inside another one or beside it. The outer one of two with the same range
/// comes first.
pub fn render(source: &str, mut sites: Vec<Site>) -> (String, Vec<Place>) {
    sites.sort_by_key(|site| (site.range.start, !site.range.is_empty(), usize::MAX - site.range.len()));
    let mut writer = Writer { source, sites, text: String::new(), places: Vec::new() };
    writer.range(0..source.len(), 0);
    (writer.text, writer.places)
}

impl Writer<'_> {
    /// Writes a range with those of its sites that are not before `first` in the order.
    fn range(&mut self, range: Range<usize>, first: usize) {
        let mut at = range.start;
        for index in first..self.sites.len() {
            let site = self.sites[index].range.clone();
            if site.start > range.end || site.start == range.end && !range.is_empty() && !site.is_empty() {
                break;
            }
            if site.start < at || site.end > range.end {
                continue;
            }
            self.text.push_str(&self.source[at..site.start]);
            at = site.end;
            self.site(index);
        }
        self.text.push_str(&self.source[at..range.end]);
    }

    fn site(&mut self, index: usize) {
        let start = self.text.len();
        let mut numbers = Vec::new();
        for piece in std::mem::take(&mut self.sites[index].pieces) {
            match piece {
                Piece::Text(text) => self.text.push_str(&text),
                Piece::Source(range) => self.range(range, index + 1),
                Piece::Change(number, text) => {
                    let start = self.text.len();
                    self.text.push_str(&text);
                    self.places.push(Place { start, end: self.text.len(), numbers: vec![number] });
                    numbers.push(number);
                }
            }
        }
        self.places.push(Place { start, end: self.text.len(), numbers });
    }
}
