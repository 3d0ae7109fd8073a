//! The measurements themselves: threads bound to hardware threads, timed over many rounds.

use std::hint::spin_loop;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::Result;

/// Rounds of a ping-pong, and how long one repetition may take: a neighbour may hold the core.
const ROUNDS: u64 = 20_000;
const PATIENCE: Duration = Duration::from_millis(200);

/// Words of a block that goes from core to core: it fits any second-level cache twice.
const BLOCK: usize = 16 << 10;
const BLOCKS: u64 = 400;

/// Bytes that are copied to measure memory: larger than a core's caches.
const COPY: usize = 64 << 20;

/// A word that has its cache line to itself.
#[repr(align(128))]
struct Line(AtomicU64);

fn bind(pu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    if pu >= CpuSet::MAX_CPU {
        return Err(format!("hardware thread {pu} is beyond what the system can bind to").into());
    }
    set.set(pu);
    sched_setaffinity(None, &set).map_err(|e| format!("binding to hardware thread {pu}: {e}").into())
}

/// Runs `f` on every one of `pus` at once and gives back what each returned.
fn on_each<R: Send>(pus: &[usize], f: impl Fn(usize) -> R + Sync) -> Result<Vec<R>> {
    let start = Barrier::new(pus.len());
    std::thread::scope(|s| {
        let (f, start) = (&f, &start);
        let spawn = |(i, pu): (usize, &usize)| {
            let pu = *pu;
            s.spawn(move || {
                let bound = bind(pu);
                start.wait();
                bound.map(|()| f(i))
            })
        };
        let threads: Vec<_> = pus.iter().enumerate().map(spawn).collect();
        threads.into_iter().map(|t| t.join().map_err(|_| "a measuring thread panicked")?).collect()
    })
}

/// Seconds for a cache line to go one way between two hardware threads, one figure a repetition.
pub fn latency(a: usize, b: usize, repeat: u32) -> Result<Vec<f64>> {
    (0..repeat).map(|_| ping_pong(a, b)).collect()
}

fn ping_pong(a: usize, b: usize) -> Result<f64> {
    let (ping, pong, stop) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let done = on_each(&[a, b], |side| {
        let begun = Instant::now();
        let (mine, theirs) = if side == 0 { (&ping.0, &pong.0) } else { (&pong.0, &ping.0) };
        for round in 1..=ROUNDS {
            if side == 0 {
                mine.store(round, Ordering::Release);
            }
            let mut looks = 0u32;
            while theirs.load(Ordering::Acquire) < round {
                spin_loop();
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(1 << 16) && begun.elapsed() > PATIENCE {
                    stop.0.store(1, Ordering::Relaxed);
                }
                if looks.is_multiple_of(1 << 10) && stop.0.load(Ordering::Relaxed) != 0 {
                    return (round, begun.elapsed());
                }
            }
            if side == 1 {
                mine.store(round, Ordering::Release);
            }
        }
        (ROUNDS, begun.elapsed())
    })?;
    let (rounds, elapsed) = done[0];
    Ok(elapsed.as_secs_f64() / rounds as f64 / 2.0)
}

/// Bytes per second that `reader` reads of blocks that `writer` has just written, one figure a repetition.
pub fn bandwidth(writer: usize, reader: usize, repeat: u32) -> Result<Vec<f64>> {
    (0..repeat).map(|_| stream(writer, reader)).collect()
}

fn stream(writer: usize, reader: usize) -> Result<f64> {
    let blocks: Vec<Vec<AtomicU64>> = (0..2).map(|_| (0..BLOCK).map(|_| AtomicU64::new(0)).collect()).collect();
    let (written, read) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let wait = |word: &AtomicU64, until: u64| {
        let begun = Instant::now();
        let mut looks = 0u32;
        while word.load(Ordering::Acquire) < until {
            looks = looks.wrapping_add(1);
            // On a core that is shared the other side may not be running.
            if looks.is_multiple_of(1 << 12) && begun.elapsed() > Duration::from_millis(1) {
                std::thread::yield_now();
            }
            spin_loop();
        }
    };
    let done = on_each(&[writer, reader], |side| {
        let mut sum = 0u64;
        let mut busy = Duration::ZERO;
        for round in 0..BLOCKS {
            let block = &blocks[(round % 2) as usize];
            if side == 0 {
                wait(&read.0, round.saturating_sub(1));
                for word in block {
                    word.store(round, Ordering::Relaxed);
                }
                written.0.store(round + 1, Ordering::Release);
            } else {
                wait(&written.0, round + 1);
                let begun = Instant::now();
                sum = block.iter().fold(sum, |s, w| s.wrapping_add(w.load(Ordering::Relaxed)));
                busy += begun.elapsed();
                read.0.store(round + 1, Ordering::Release);
            }
        }
        (busy, std::hint::black_box(sum))
    })?;
    Ok((BLOCKS as usize * BLOCK * 8) as f64 / done[1].0.as_secs_f64())
}

/// Bytes per second that all of `pus` together copy from memory to memory, one figure a repetition.
pub fn copy_rate(pus: &[usize], repeat: u32) -> Result<Vec<f64>> {
    let start = Barrier::new(pus.len());
    let each = on_each(pus, |_| {
        let source = vec![1u8; COPY];
        // Touched, so that no page fault is measured.
        let mut target = vec![2u8; COPY];
        let mut times = Vec::with_capacity(repeat as usize);
        for _ in 0..=repeat {
            start.wait();
            let begun = Instant::now();
            target.copy_from_slice(std::hint::black_box(&source));
            std::hint::black_box(&mut target);
            times.push(begun.elapsed().as_secs_f64());
        }
        times
    })?;
    // The first round warms up.
    let slowest = |i: usize| each.iter().map(|t| t[i]).fold(0.0, f64::max);
    Ok((1..=repeat as usize).map(|i| (pus.len() * COPY) as f64 / slowest(i)).collect())
}
