//! Which thread serves which flow group: a pure function of the previous placement and the number of running threads.

/// The move of a flow group to another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The group's number.
    pub group: usize,
    /// The thread that gives it.
    pub from: usize,
    /// The thread that takes it.
    pub to: usize,
}

/// The places of the groups. There are as many groups as threads, and the first threads run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The thread of each group.
    thread_of: Vec<usize>,
    /// The groups of each thread when it was last parked. It gets those back first.
    had: Vec<Vec<usize>>,
    running: usize,
}

impl Placement {
    /// All of `most` threads run, and each has the group of its number.
    pub fn new(most: usize) -> Self {
        Self { thread_of: (0..most).collect(), had: (0..most).map(|group| vec![group]).collect(), running: most }
    }
    /// Threads that run.
    pub fn running(&self) -> usize {
        self.running
    }
    /// Most threads that can run.
    pub fn most(&self) -> usize {
        self.thread_of.len()
    }
    /// The groups of a thread, ascending.
    pub fn groups_of(&self, thread: usize) -> Vec<usize> {
        (0..self.most()).filter(|group| self.thread_of[*group] == thread).collect()
    }

    /// Lets the first `running` threads run, at least one. Returns the moves, as few as possible.
    pub fn resize(&mut self, running: usize) -> Vec<Move> {
        let running = running.clamp(1, self.most().max(1));
        for thread in running..self.running {
            self.had[thread] = self.groups_of(thread);
        }
        self.running = running;
        let shares = self.shares();
        let mut moves = Vec::new();
        for to in 0..running {
            while self.groups_of(to).len() < shares[to] {
                let Some(group) = self.spare(to, &shares) else { break };
                moves.push(Move { group, from: self.thread_of[group], to });
                self.thread_of[group] = to;
            }
        }
        moves
    }

    /// How many groups each thread is to have. The numbers differ by at most one, and threads that have more groups now
    /// get the larger number.
    fn shares(&self) -> Vec<usize> {
        let has: Vec<usize> = (0..self.most()).map(|thread| self.groups_of(thread).len()).collect();
        let mut fullest: Vec<usize> = (0..self.running).collect();
        fullest.sort_by_key(|thread| (std::cmp::Reverse(has[*thread]), *thread));
        let mut shares = vec![0; self.most()];
        for (place, thread) in fullest.into_iter().enumerate() {
            shares[thread] = self.most() / self.running + usize::from(place < self.most() % self.running);
        }
        shares
    }

    /// A group for thread `to` from a thread that has more than its share: one that `to` had, its own, or the last one.
    fn spare(&self, to: usize, shares: &[usize]) -> Option<usize> {
        let spare = |group: &usize| {
            let thread = self.thread_of[*group];
            self.groups_of(thread).len() > shares[thread]
        };
        let had = self.had[to].iter().copied().find(spare);
        had.or_else(|| Some(to).filter(spare)).or_else(|| (0..self.most()).rev().find(spare))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_rng::Rng;

    /// Numbers of groups per running thread.
    fn sizes(placement: &Placement) -> Vec<usize> {
        (0..placement.running()).map(|thread| placement.groups_of(thread).len()).collect()
    }

    /// The fewest possible moves: every group of a parked thread, and the surplus of running threads however the shares
    /// are dealt.
    fn fewest(before: &Placement, running: usize) -> usize {
        let has: Vec<usize> = (0..before.most()).map(|thread| before.groups_of(thread).len()).collect();
        let mut kept: Vec<usize> = has[..running].to_vec();
        kept.sort_unstable_by(|a, b| b.cmp(a));
        let (share, more) = (before.most() / running, before.most() % running);
        let stay: usize = kept.iter().enumerate().map(|(i, n)| (*n).min(share + usize::from(i < more))).sum();
        before.most() - stay
    }

    #[test]
    fn groups_are_shared_evenly_with_the_fewest_moves_whatever_came_before() {
        let mut rng = Rng::new(1);
        for most in 1..=16 {
            let mut placement = Placement::new(most);
            for step in 0..500 {
                let running = 1 + rng.below(most as u64) as usize;
                let before = placement.clone();
                let moves = placement.resize(running);
                let case = format!("{most} groups, step {step}: {before:?} to {running}");
                assert_eq!(placement.running(), running, "{case}");
                let sizes = sizes(&placement);
                assert_eq!(sizes.iter().sum::<usize>(), most, "parked threads have nothing; {case}");
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}; {case}");
                assert_eq!(moves.len(), fewest(&before, running), "{case}");
                let mut seen = before.thread_of.clone();
                for one in &moves {
                    assert_eq!(seen[one.group], one.from, "{case}");
                    assert_ne!(one.from, one.to, "{case}");
                    seen[one.group] = one.to;
                }
                assert_eq!(seen, placement.thread_of, "the moves lead there; {case}");
            }
        }
    }

    #[test]
    fn a_thread_that_comes_back_gets_what_it_had() {
        for most in 1..=16 {
            for running in 2..=most {
                let mut placement = Placement::new(most);
                placement.resize(running);
                let before = placement.groups_of(running - 1);
                placement.resize(running - 1);
                placement.resize(running);
                assert_eq!(placement.groups_of(running - 1), before, "{most} groups, {running} threads");
            }
            let mut placement = Placement::new(most);
            placement.resize(1);
            placement.resize(most);
            assert_eq!(placement.thread_of, (0..most).collect::<Vec<_>>(), "all have their own again");
        }
    }

    #[test]
    fn as_many_as_before_moves_nothing_and_none_means_one() {
        let mut placement = Placement::new(4);
        assert!(placement.resize(4).is_empty());
        assert_eq!(placement.resize(0).len(), 3);
        assert_eq!((placement.running(), placement.groups_of(0)), (1, vec![0, 1, 2, 3]));
        assert_eq!(placement.resize(99).len(), 3);
        assert_eq!(placement.running(), 4);
    }
}
