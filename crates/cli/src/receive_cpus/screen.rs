//! Draws a page on a terminal, over the last one, cut to the terminal's size.

use rustix::termios::tcgetwinsize;
use std::os::fd::AsFd;

/// The size of a terminal that does not tell its own.
const USUAL: Size = Size { rows: 24, columns: 80 };
/// The tail gets one row in this many, unless there is room for the whole table.
const TAIL: usize = 4;

/// A terminal's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Lines.
    pub rows: usize,
    /// Characters of a line.
    pub columns: usize,
}

impl Size {
    /// The size of this terminal now. Windows change theirs.
    pub fn of(terminal: impl AsFd) -> Self {
        let size = tcgetwinsize(terminal).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
        size.map_or(USUAL, |size| Self { rows: size.ws_row.into(), columns: size.ws_col.into() })
    }
}

/// A page, from the top to the bottom. Its lines must have no control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// It is cut to the room that is left.
    pub table: Vec<String>,
    /// It is always shown, as far as it fits the terminal.
    pub foot: Vec<String>,
    /// The newest is last. As many as fit are shown.
    pub tail: Vec<String>,
}

impl Page {
    /// Its lines, cut to the screen's width. There is one fewer than the screen is high, because the cursor has the
    /// last.
    fn cut(&self, size: Size) -> Vec<String> {
        let room = size.rows.saturating_sub(1).max(1);
        let foot = shortened(&self.foot, room.saturating_sub(2).max(1));
        let beside = room.saturating_sub(foot.len());
        let tail = self.tail.len().min((beside / TAIL).max(beside.saturating_sub(self.table.len())));
        let table = shortened(&self.table, beside - tail);
        let lines = table.into_iter().chain(foot).chain(self.tail[self.tail.len() - tail..].iter().cloned());
        lines.take(room).map(|line| clipped(&line, size.columns)).collect()
    }

    /// The escape sequences that draw it: each line over the old one, with the rest wiped, and then the rest of the
    /// screen. Line wrapping (DECAWM) is off meanwhile, because a wide character counts as one here.
    pub fn drawn(&self, size: Size) -> String {
        let lines = self.cut(size).into_iter();
        lines.fold(String::from("\x1b[H\x1b[?7l"), |all, line| all + &line + "\x1b[K\r\n") + "\x1b[J\x1b[?7h"
    }
}

/// The first lines. The last one says how many more there are.
fn shortened(lines: &[String], room: usize) -> Vec<String> {
    if lines.len() <= room {
        return lines.to_vec();
    }
    let shown = room.saturating_sub(1);
    let more = (room > 0).then(|| format!("... and {} more lines: no room", lines.len() - shown));
    lines[..shown].iter().cloned().chain(more).collect()
}

/// The first characters of a line. `>` says that there are more.
fn clipped(line: &str, columns: usize) -> String {
    if line.chars().count() <= columns {
        return line.to_owned();
    }
    line.chars().take(columns.saturating_sub(1)).chain(['>']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(name: &str, count: usize) -> Vec<String> {
        (0..count).map(|number| format!("{name} {number} µ{}", "x".repeat(60))).collect()
    }

    #[test]
    fn a_page_fits_every_screen_and_says_what_it_leaves_out() {
        let page = Page { table: lines("cpu", 65), foot: lines("alarm", 3), tail: lines("decision", 5) };
        for (rows, columns) in [(1, 1), (2, 5), (3, 80), (5, 40), (10, 40), (24, 80), (60, 20), (200, 300)] {
            let cut = page.cut(Size { rows, columns });
            assert!(cut.len() <= rows.saturating_sub(1).max(1), "{rows}x{columns}: {cut:#?}");
            assert!(cut.iter().all(|line| line.chars().count() <= columns), "{rows}x{columns}: {cut:#?}");
        }
        let cut = page.cut(Size { rows: 24, columns: 80 });
        let of = |name: &str| cut.iter().filter(|line| line.starts_with(name)).count();
        assert_eq!((of("cpu"), of("alarm"), of("decision"), cut.len()), (14, 3, 5, 23), "{cut:#?}");
        assert_eq!(cut[14], "... and 51 more lines: no room");
        assert!(cut[22].starts_with("decision 4"), "the newest is the last: {cut:#?}");
        let cut = page.cut(Size { rows: 10, columns: 40 });
        assert!(cut[0].ends_with("x>") && cut.contains(&"... and 61 more lines: no room".into()), "{cut:#?}");
        assert_eq!(page.cut(Size { rows: 100, columns: 200 }).len(), 73, "there is room for all of it");
        let alarming = Page { foot: lines("alarm", 40), ..page };
        let cut = alarming.cut(Size { rows: 10, columns: 80 });
        assert_eq!((cut.len(), cut[8].as_str()), (9, "... and 34 more lines: no room"), "{cut:#?}");
    }

    #[test]
    fn a_page_is_drawn_over_the_one_before() {
        let page = Page { foot: vec!["one".into()], ..Page::default() };
        assert_eq!(page.drawn(USUAL), "\x1b[H\x1b[?7lone\x1b[K\r\n\x1b[J\x1b[?7h");
    }
}
