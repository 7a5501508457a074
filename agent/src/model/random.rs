//! Numbers for tests: any will do, as long as they are the same everywhere.

/// SplitMix64 (Steele, Lea, Flood 2014): any state is as good as any other.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `n` less one.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
