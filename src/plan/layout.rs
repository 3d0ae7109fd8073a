//! Where the parts of a message lie.

use crate::plan::{Buffer, Collective, Plan};
use crate::{Error, Result};

/// Pieces start at multiples of this many bytes of their block where they can, so that two ranks never write one
/// cache line.
const LINE: u64 = 64;

/// Maps (chunk, part) to elements for one message. Pure arithmetic in 64 bits, nothing is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    chunks: u64,
    parts: u64,
    per_block: u64,
    in_blocks: u64,
    out_blocks: u64,
    block: u64,
    width: u64,
}

impl Layout {
    /// The layout of `block` elements of `width` bytes a block under `plan`, in `chunks` chunks. All-reduce, reduce and
    /// broadcast have one block; the `count` of reduce-scatter, all-gather and all-to-all is that of a block.
    ///
    /// # Errors
    /// [`Error::Argument`] where the whole message does not fit the address space.
    pub fn new(plan: &Plan, block: u64, width: usize, chunks: u64) -> Result<Self> {
        Self::cut(plan.collective, plan.ranks(), plan.parts, block, width, chunks)
    }

    fn cut(c: Collective, ranks: usize, parts: usize, block: u64, width: usize, chunks: u64) -> Result<Self> {
        message_bytes(c, ranks, block, width)?;
        let (in_blocks, out_blocks) = c.blocks(ranks);
        let per_block = Blocks::new(c, ranks, parts).per_block() as u64;
        Ok(Self {
            chunks: chunks.max(1),
            parts: parts as u64,
            per_block,
            in_blocks: in_blocks as u64,
            out_blocks: out_blocks as u64,
            block,
            width: width as u64,
        })
    }

    /// How often the program runs.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Bytes an element.
    pub fn width(&self) -> u64 {
        self.width
    }

    /// How many parts of one chunk `buffer` holds at most.
    pub fn parts_in(&self, buffer: Buffer) -> u64 {
        match buffer {
            Buffer::Input => self.in_blocks * self.per_block,
            Buffer::Output => self.out_blocks * self.per_block,
            Buffer::Scratch => self.parts,
        }
    }

    /// Elements of each user buffer, of the rank with the most.
    pub fn elements(&self, buffer: Buffer) -> u64 {
        self.block * if buffer == Buffer::Input { self.in_blocks } else { self.out_blocks }
    }

    /// First element and element count of a part of a user buffer.
    pub fn range(&self, chunk: u64, part: u64) -> (u64, u64) {
        let (block, j) = (part / self.per_block, part % self.per_block);
        let piece = chunk * self.per_block + j;
        let (start, end) = (self.boundary(piece), self.boundary(piece + 1));
        (block * self.block + start, end - start)
    }

    /// Elements of a part: the same in every block.
    pub fn len(&self, chunk: u64, part: u64) -> u64 {
        self.range(chunk, part % self.per_block).1
    }

    /// Bytes that a part needs at most, rounded up to cache lines.
    pub fn part_bytes(&self) -> u64 {
        let pieces = self.chunks * self.per_block;
        self.lines().div_ceil(pieces) * self.line() * self.width
    }

    /// Elements in a cache line.
    fn line(&self) -> u64 {
        (LINE / self.width).max(1)
    }

    fn lines(&self) -> u64 {
        self.block.div_ceil(self.line())
    }

    fn boundary(&self, piece: u64) -> u64 {
        let pieces = u128::from(self.chunks * self.per_block);
        let lines = (u128::from(self.lines()) * u128::from(piece)).div_ceil(pieces) as u64;
        (lines * self.line()).min(self.block)
    }
}

/// Which blocks of a collective each rank's buffers hold, and so which parts of a chunk are where in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    collective: Collective,
    ranks: usize,
    per_block: usize,
}

impl Blocks {
    /// Those of a plan.
    pub fn of(plan: &Plan) -> Self {
        Self::new(plan.collective, plan.ranks(), plan.parts)
    }

    /// Those of `parts` parts among `ranks` ranks.
    pub fn new(collective: Collective, ranks: usize, parts: usize) -> Self {
        Self { collective, ranks, per_block: (parts / collective.distinct(ranks).max(1)).max(1) }
    }

    /// Parts of a chunk in each block.
    pub fn per_block(self) -> usize {
        self.per_block
    }

    /// The first block in a buffer, how many blocks on the next one is, and how many there are. Block `s * ranks + d`
    /// of an all-to-all is what rank `s` has for rank `d`.
    fn run(self, rank: usize, buffer: Buffer) -> (usize, usize, usize) {
        let n = self.ranks;
        match (self.collective, buffer) {
            (_, Buffer::Scratch) => (0, 1, 0),
            (Collective::Reduce { root }, Buffer::Output) => (0, 1, usize::from(rank == root)),
            (Collective::AllReduce | Collective::Broadcast { .. } | Collective::Reduce { .. }, _) => (0, 1, 1),
            (Collective::ReduceScatter, Buffer::Input) | (Collective::AllGather, Buffer::Output) => (0, 1, n),
            (Collective::ReduceScatter, Buffer::Output) | (Collective::AllGather, Buffer::Input) => (rank, 1, 1),
            (Collective::AllToAll, Buffer::Input) => (rank * n, 1, n),
            (Collective::AllToAll, Buffer::Output) => (rank, n, n),
        }
    }

    /// Parts of a chunk in `rank`'s input or output; 0 for scratch, whose size is the program's.
    pub fn size(self, rank: usize, buffer: Buffer) -> usize {
        self.run(rank, buffer).2 * self.per_block
    }

    /// The part at index `at` of `rank`'s input or output.
    pub fn part(self, rank: usize, buffer: Buffer, at: usize) -> usize {
        let (first, step, _) = self.run(rank, buffer);
        (first + at / self.per_block * step) * self.per_block + at % self.per_block
    }

    /// Where in `rank`'s input or output `part` is, if it is there.
    pub fn at(self, rank: usize, buffer: Buffer, part: usize) -> Option<usize> {
        let (first, step, count) = self.run(rank, buffer);
        let ahead = (part / self.per_block).checked_sub(first).filter(|a| a % step == 0 && a / step < count)?;
        Some(ahead / step * self.per_block + part % self.per_block)
    }

    /// The rank whose input alone `part` is; `None` where inputs are reduced.
    pub fn source(self, part: usize) -> Option<usize> {
        let block = part / self.per_block;
        match self.collective {
            Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce { .. } => None,
            Collective::Broadcast { root } => Some(root),
            Collective::AllGather => Some(block),
            Collective::AllToAll => Some(block / self.ranks),
        }
    }
}

/// Bytes of the larger buffer of a collective.
///
/// # Errors
/// [`Error::Argument`] where that is more than an address space holds.
pub fn message_bytes(collective: Collective, ranks: usize, block: u64, width: usize) -> Result<u64> {
    let (inputs, outputs) = collective.blocks(ranks);
    let blocks = inputs.max(outputs) as u64;
    let bytes = block.checked_mul(blocks).and_then(|n| n.checked_mul(width as u64)).filter(|b| *b <= isize::MAX as u64);
    bytes.ok_or_else(|| {
        Error::Argument(format!(
            "a message of {blocks} block(s) of {block} elements of {width} bytes is more than an address space holds"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(c: Collective, ranks: usize, parts: usize, block: u64, width: usize, chunks: u64) -> Layout {
        Layout::cut(c, ranks, parts, block, width, chunks).unwrap()
    }

    proptest! {
        #[test]
        fn parts_tile_the_message(ranks in 1usize..9, per_block in 1usize..5, block in 0u64..5000, chunks in 1u64..7,
                                  width in prop::sample::select(vec![1usize, 2, 4, 8])) {
            let l = layout(Collective::AllGather, ranks, ranks * per_block, block, width, chunks);
            let mut seen = vec![0u8; (block * ranks as u64) as usize];
            for k in 0..chunks {
                for p in 0..(ranks * per_block) as u64 {
                    let (start, len) = l.range(k, p);
                    prop_assert_eq!(len, l.len(k, p));
                    prop_assert!(len * width as u64 <= l.part_bytes());
                    for e in start..start + len { seen[e as usize] += 1; }
                }
            }
            prop_assert!(seen.iter().all(|n| *n == 1));
        }
    }

    #[test]
    fn parts_are_found_where_they_are() {
        for c in Collective::every(2) {
            let blocks = Blocks::new(c, 3, 2 * c.distinct(3));
            for (rank, buffer) in (0..3).flat_map(|r| [(r, Buffer::Input), (r, Buffer::Output)]) {
                let parts: Vec<usize> =
                    (0..blocks.size(rank, buffer)).map(|at| blocks.part(rank, buffer, at)).collect();
                for part in 0..2 * c.distinct(3) {
                    assert_eq!(blocks.at(rank, buffer, part), parts.iter().position(|p| *p == part), "{c} {part}");
                }
            }
        }
        let blocks = Blocks::new(Collective::AllToAll, 3, 18);
        // The second half of what rank 2 has for rank 1.
        assert_eq!((blocks.part(2, Buffer::Input, 3), blocks.part(1, Buffer::Output, 5)), (15, 15));
        assert_eq!(Blocks::new(Collective::Reduce { root: 2 }, 3, 1).size(1, Buffer::Output), 0);
    }

    #[test]
    fn offsets_are_64_bit() {
        let count = 3u64 << 40;
        let l = layout(Collective::AllReduce, 8, 8, count, 4, 1000);
        let mut at = 0;
        for k in 0..1000 {
            for p in 0..8 {
                let (start, len) = l.range(k, p);
                assert_eq!(start, at);
                at += len;
            }
        }
        assert_eq!(at, count);
    }

    #[test]
    fn more_than_the_address_space_is_refused() {
        for count in [1u64 << 63, u64::MAX, 1 << 61] {
            let e = Layout::cut(Collective::AllGather, 4, 4, count, 4, 1).unwrap_err();
            assert!(e.to_string().contains("address space"), "{e}");
        }
    }
}
