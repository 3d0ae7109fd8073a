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
    /// The layout of `block` elements of `width` bytes a block under `plan`, in `chunks` chunks. All-reduce and
    /// broadcast have one block; the `count` of reduce-scatter and all-gather is that of a block.
    ///
    /// # Errors
    /// [`Error::Argument`] where the whole message does not fit the address space.
    pub fn new(plan: &Plan, block: u64, width: usize, chunks: u64) -> Result<Self> {
        Self::cut(plan.collective, plan.ranks(), plan.parts, block, width, chunks)
    }

    fn cut(c: Collective, ranks: usize, parts: usize, block: u64, width: usize, chunks: u64) -> Result<Self> {
        message_bytes(c, ranks, block, width)?;
        let (in_blocks, out_blocks) = c.blocks(ranks);
        let blocks = in_blocks.max(out_blocks) as u64;
        let parts = parts as u64;
        Ok(Self {
            chunks: chunks.max(1),
            parts,
            per_block: (parts / blocks).max(1),
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

    /// How many parts of one chunk `buffer` holds.
    pub fn parts_in(&self, buffer: Buffer) -> u64 {
        match buffer {
            Buffer::Input => self.in_blocks * self.per_block,
            Buffer::Output => self.out_blocks * self.per_block,
            Buffer::Scratch => self.parts,
        }
    }

    /// Elements of each user buffer.
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
