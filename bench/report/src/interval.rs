//! A ratio as a picture: the range of the rounds on a logarithmic axis, the median, the line 1.0, and the target.

use crate::statistics::Spread;
use crate::words;
use std::fmt::Write;

const WIDTH: f64 = 220.0;
const HEIGHT: f64 = 22.0;
/// Room at both ends, so that no mark is cut.
const MARGIN: f64 = 10.0;
/// Room of a number.
const ROOM: f64 = 22.0;
/// Where the axis may have a number.
const TICKS: [f64; 13] = [0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0];

/// The axis that all pictures of a table share.
pub struct Axis {
    least: f64,
    most: f64,
}

impl Axis {
    /// An axis with room for these ratios and for 1.
    pub fn new(ratios: impl IntoIterator<Item = f64>) -> Self {
        let sensible = ratios.into_iter().filter(|ratio| ratio.is_finite() && *ratio > 0.0);
        let (mut least, mut most) = (0.5f64, 2.0f64);
        for ratio in sensible {
            (least, most) = (least.min(ratio), most.max(ratio));
        }
        Self { least, most }
    }

    fn x(&self, ratio: f64) -> f64 {
        let share = (ratio / self.least).ln() / (self.most / self.least).ln();
        MARGIN + share.clamp(0.0, 1.0) * (WIDTH - 2.0 * MARGIN)
    }

    /// The numbers of the axis.
    pub fn scale(&self) -> String {
        let mut svg = open("scale");
        let mut last = f64::NEG_INFINITY;
        for tick in TICKS.into_iter().chain([100.0, 200.0, 500.0, 1000.0]) {
            let x = self.x(tick);
            // The number 1 always stands there, and others where there is room.
            let crowded = x - last < ROOM || (x - self.x(1.0)).abs() < ROOM;
            if !(self.least..=self.most).contains(&tick) || (crowded && tick != 1.0) {
                continue;
            }
            last = x;
            let _ = write!(svg, r#"<text class="tick" x="{x:.1}" y="15" text-anchor="middle">{tick}</text>"#);
        }
        svg + "</svg>"
    }

    /// One ratio. `kind` is the class of its marks.
    pub fn interval(&self, spread: &Spread, target: Option<f64>, kind: &str) -> String {
        let (middle, mut svg) = (HEIGHT / 2.0, open("interval"));
        let _ = write!(svg, "<title>{}</title>", words::spread(spread, Some(2)));
        let one = self.x(1.0);
        let _ = write!(svg, r#"<line class="one" x1="{one:.1}" y1="0" x2="{one:.1}" y2="{HEIGHT}"/>"#);
        let (from, to) = (self.x(spread.least), self.x(spread.most));
        let _ = write!(svg, r#"<line class="range {kind}" x1="{from:.1}" y1="{middle}" x2="{to:.1}" y2="{middle}"/>"#);
        for end in [from, to] {
            let (top, bottom) = (middle - 4.0, middle + 4.0);
            let _ = write!(svg, r#"<line class="range {kind}" x1="{end:.1}" y1="{top}" x2="{end:.1}" y2="{bottom}"/>"#);
        }
        let _ = write!(svg, r#"<circle class="{kind}" cx="{:.1}" cy="{middle}" r="4"/>"#, self.x(spread.median));
        if let Some(target) = target {
            let x = self.x(target);
            let _ = write!(svg, r#"<path class="target" d="M{x:.1} {middle} l-4 -9 h8 z"/>"#);
        }
        svg + "</svg>"
    }
}

fn open(class: &str) -> String {
    format!(r#"<svg class="{class}" role="img" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_factors_are_equal_lengths_and_nothing_lies_outside() {
        let axis = Axis::new([0.1, 10.0, f64::NAN, 0.0]);
        assert_eq!((axis.x(0.1), axis.x(1.0), axis.x(10.0)), (MARGIN, WIDTH / 2.0, WIDTH - MARGIN));
        assert_eq!((axis.x(1e-9), axis.x(1e9)), (MARGIN, WIDTH - MARGIN));
        for most in [10.0, 100.0, 1000.0] {
            assert!(Axis::new([0.001, most]).scale().contains(">1</text>"), "1 is there, however crowded");
        }
    }

    #[test]
    fn a_picture_has_its_target_only_if_there_is_one() {
        let (axis, spread) = (Axis::new([3.0]), Spread { median: 2.0, least: 1.5, most: 3.0 });
        assert!(axis.interval(&spread, Some(1.5), "good").contains("class=\"target\""));
        assert!(!axis.interval(&spread, None, "good").contains("class=\"target\""));
    }
}
