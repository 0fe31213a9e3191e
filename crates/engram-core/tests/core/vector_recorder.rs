//! Items of a vector recorder equal those of a naive model of the episodes, in every autoreset mode.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test"
)]

use std::sync::Arc;

use engram_core::writer::{
    AtEnd, AutoresetMode, ColumnInput, ItemColumn, ItemKind, ItemRecorder, ItemRule, ItemSource,
    Part, VectorRecorder, VectorStep, WriterOptions,
};
use engram_core::{CellSpec, Compression, DType, Layout, NewItem, Schema, SharedBytes, Trajectory};

const ENVS: usize = 3;

fn layout(names: &[&str]) -> Arc<Layout> {
    Arc::new(Layout {
        names: names.iter().map(|name| (*name).into()).collect(),
        structure: "".into(),
    })
}

fn recorder(
    mode: AutoresetMode,
    chunk_length: Option<usize>,
    rules: &[ItemKind],
) -> VectorRecorder {
    let cell = |dtype| CellSpec {
        dtype,
        shape: [].into_iter().collect(),
    };
    let schema = Schema {
        layout: layout(&["obs", "action"]),
        cells: [cell(DType::Uint32), cell(DType::Uint32)].into(),
    };
    let column = |source, part| ItemColumn { source, part };
    let rules: Vec<_> = (rules.iter().enumerate())
        .map(|(table, kind)| ItemRule {
            table: u32::try_from(table).unwrap(),
            priority: 1.0,
            kind: *kind,
            layout: layout(&["a", "b", "c", "d", "e"]),
            columns: match kind {
                ItemKind::Transitions { .. } => [
                    column(ItemSource::Observation(0), Part::First),
                    column(ItemSource::Step(0), Part::First),
                    column(ItemSource::Return, Part::Last),
                    column(ItemSource::Discount, Part::Last),
                    column(ItemSource::Observation(0), Part::Last),
                ],
                ItemKind::Sequences { .. } => [
                    column(ItemSource::Observation(0), Part::All),
                    column(ItemSource::Step(0), Part::All),
                    column(ItemSource::Reward, Part::All),
                    column(ItemSource::Terminated, Part::All),
                    column(ItemSource::Valid, Part::All),
                ],
            }
            .into(),
        })
        .collect();
    let options = WriterOptions {
        history: 1,
        chunk_length,
        compression: Compression::Off,
        shard: engram_core::writer::ShardId::default(),
    };
    VectorRecorder::new(options, 7, ENVS, mode, &schema, 1, &rules).unwrap()
}

/// The bytes of each column of an item.
fn cells(trajectory: &Trajectory) -> Vec<Vec<u8>> {
    let column = |column| {
        let mut bytes = Vec::new();
        let read = trajectory.for_each_slice(column, |chunk, column, first, len| {
            let size = chunk.schema().cells[column].bytes();
            let stored = chunk.raw(column).unwrap();
            bytes.extend_from_slice(&stored[first * size..(first + len) * size]);
            Ok(())
        });
        read.unwrap();
        bytes
    };
    (0..trajectory.column_count()).map(column).collect()
}

/// An episode of one environment. Its observations are `id`, `id + 1`, ...; its actions are `10 * id`, `10 * id + 1`,
/// ...
#[derive(Clone, Copy, Debug)]
struct Episode {
    id: u32,
    steps: u32,
    terminated: bool,
    ended: bool,
}

impl Episode {
    fn reward(self, step: u32) -> f64 {
        f64::from(self.id % 7) + f64::from(step)
    }

    /// The items that a rule of this kind creates; for each of its columns, the bytes of all cells.
    fn items(self, kind: ItemKind) -> Vec<Vec<Vec<u8>>> {
        let bytes = |values: Vec<u32>| values.into_iter().flat_map(u32::to_le_bytes).collect();
        let is_terminal = |step| self.terminated && self.ended && step + 1 == self.steps;
        match kind {
            ItemKind::Transitions { n_step, discount } => {
                let item = |start: u32| {
                    let stop = self.steps.min(start + n_step as u32);
                    if stop - start < n_step as u32 && !self.ended {
                        return None;
                    }
                    let power = |k: u32| discount.powi(i32::try_from(k).unwrap());
                    let reward_sum: f64 = (start..stop)
                        .map(|i| power(i - start) * self.reward(i))
                        .sum();
                    let item_discount =
                        f64::from(u8::from(!is_terminal(stop - 1))) * power(stop - start);
                    Some(vec![
                        bytes(vec![self.id + start]),
                        bytes(vec![10 * self.id + start]),
                        (reward_sum as f32).to_le_bytes().to_vec(),
                        (item_discount as f32).to_le_bytes().to_vec(),
                        bytes(vec![self.id + stop]),
                    ])
                };
                (0..self.steps).filter_map(item).collect()
            }
            ItemKind::Sequences {
                length,
                period,
                at_end,
            } => {
                // `covered`: the number of steps up to the end of the last sequence.
                let (length, mut items, mut covered) = (length as u32, Vec::new(), 0);
                for start in (0..self.steps).step_by(period as usize) {
                    let stop = self.steps.min(start + length);
                    let cut = stop - start < length;
                    if cut && (!self.ended || at_end == AtEnd::Drop || covered == self.steps) {
                        break;
                    }
                    covered = stop;
                    let zeros = if cut && at_end == AtEnd::Pad {
                        length - (stop - start)
                    } else {
                        0
                    };
                    let padded = |mut values: Vec<u32>| {
                        values.resize(values.len() + zeros as usize, 0);
                        values
                    };
                    let flags = |flag: &dyn Fn(u32) -> bool| {
                        padded((start..stop).map(|i| u32::from(flag(i))).collect())
                            .into_iter()
                            .map(|flag| flag as u8)
                            .collect()
                    };
                    let rewards = (start..stop).map(|i| (self.reward(i) as f32).to_bits());
                    items.push(vec![
                        bytes(padded((start..=stop).map(|i| self.id + i).collect())),
                        bytes(padded((start..stop).map(|i| 10 * self.id + i).collect())),
                        bytes(padded(rewards.collect())),
                        flags(&is_terminal),
                        flags(&|_| true),
                    ]);
                    if cut {
                        break;
                    }
                }
                items
            }
        }
    }
}

/// Records environments whose episodes have random lengths. Returns the recorder's items, and all episodes.
fn record_episodes(
    mode: AutoresetMode,
    chunk_length: Option<usize>,
    rules: &[ItemKind],
    seed: u64,
) -> (Vec<(u32, NewItem)>, Vec<Episode>) {
    let mut state = seed;
    let mut random = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % n
    };
    let mut next_id = 0;
    let mut new_episode = || {
        next_id += 1000;
        Episode {
            id: next_id,
            steps: 0,
            terminated: false,
            ended: false,
        }
    };
    let mut recorder = recorder(mode, chunk_length, rules);
    let (mut items, mut episodes) = (Vec::new(), Vec::new());
    let mut current: [Episode; ENVS] = std::array::from_fn(|_| new_episode());
    let encode = |values: &[u32]| {
        values
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let first = encode(&current.map(|episode| episode.id));
    recorder
        .reset(&[first.as_slice().into()], &[true; ENVS])
        .unwrap();
    for _ in 0..60 {
        let (mut obs, mut actions, mut last) = ([0; ENVS], [0; ENVS], Vec::new());
        let (mut rewards, mut terminated, mut truncated) =
            ([0.0; ENVS], [false; ENVS], [false; ENVS]);
        for env in 0..ENVS {
            let episode = &mut current[env];
            if episode.ended {
                // NEXT_STEP: this step resets the environment. Its action and reward must not be used.
                *episode = new_episode();
                (obs[env], actions[env], rewards[env]) = (episode.id, 5, f64::NAN);
                continue;
            }
            actions[env] = 10 * episode.id + episode.steps;
            rewards[env] = episode.reward(episode.steps);
            episode.steps += 1;
            obs[env] = episode.id + episode.steps;
            if random(6) == 0 {
                episode.ended = true;
                episode.terminated = random(2) == 0;
                (terminated[env], truncated[env]) = (episode.terminated, !episode.terminated);
                episodes.push(*episode);
                if mode == AutoresetMode::SameStep {
                    last.push(obs[env]);
                    *episode = new_episode();
                    obs[env] = episode.id;
                }
            }
        }
        let (obs, actions, last) = (encode(&obs), encode(&actions), encode(&last));
        let last: &[SharedBytes<'_>] = &[last.as_slice().into()];
        let step = VectorStep {
            columns: &[ColumnInput::cells(&obs), ColumnInput::cells(&actions)],
            rewards: &rewards,
            terminated: &terminated,
            truncated: &truncated,
            last_observations: last,
        };
        recorder.step(&step).unwrap();
        if random(9) == 0 {
            recorder.flush().unwrap();
        }
        // In mode `Disabled`, resets the environments whose episodes have ended. In all modes, sometimes resets an
        // environment in the middle of an episode.
        let mut mask = [false; ENVS];
        for env in 0..ENVS {
            let abandoned = random(20) == 0;
            mask[env] = abandoned || mode == AutoresetMode::Disabled && current[env].ended;
            if mask[env] {
                if !current[env].ended {
                    current[env].ended = true;
                    episodes.push(current[env]);
                }
                current[env] = new_episode();
            }
        }
        let first = encode(&current.map(|episode| episode.id));
        if mask.contains(&true) {
            recorder.reset(&[first.as_slice().into()], &mask).unwrap();
        }
        items.extend(recorder.take_ready());
    }
    recorder.flush().unwrap();
    items.extend(recorder.take_ready());
    episodes.extend(current.into_iter().filter(|episode| !episode.ended));
    (items, episodes)
}

#[test]
fn items_equal_those_of_the_model() {
    for seed in 0..40 {
        let (n_step, length, period) = (1 + seed % 5, 1 + seed % 7, 1 + seed / 5 % 8);
        let at_end = [AtEnd::Drop, AtEnd::Cut, AtEnd::Pad][seed as usize % 3];
        let rules = [
            ItemKind::Transitions {
                n_step,
                discount: 0.5,
            },
            ItemKind::Sequences {
                length,
                period,
                at_end,
            },
        ];
        for mode in [
            AutoresetMode::NextStep,
            AutoresetMode::SameStep,
            AutoresetMode::Disabled,
        ] {
            for chunk_length in [None, Some(1), Some(3)] {
                let (items, episodes) = record_episodes(mode, chunk_length, &rules, seed);
                for (table, kind) in rules.iter().enumerate() {
                    let of_table = items.iter().filter(|(number, _)| *number as usize == table);
                    let mut found: Vec<_> =
                        of_table.map(|(_, item)| cells(&item.trajectory)).collect();
                    let mut expected: Vec<_> =
                        episodes.iter().flat_map(|e| e.items(*kind)).collect();
                    found.sort();
                    expected.sort();
                    assert_eq!(found, expected, "{mode:?} {kind:?} {chunk_length:?} {seed}");
                }
            }
        }
    }
}

#[test]
fn a_step_that_is_rejected_changes_nothing() {
    let mut recorder = recorder(
        AutoresetMode::Disabled,
        None,
        &[ItemKind::Transitions {
            n_step: 1,
            discount: 0.5,
        }],
    );
    let bytes = [0; 4 * ENVS];
    let step = VectorStep {
        columns: &[ColumnInput::cells(&bytes), ColumnInput::cells(&bytes)],
        rewards: &[0.0; ENVS],
        terminated: &[false, true, false],
        truncated: &[false; ENVS],
        last_observations: &[],
    };
    let text = |result: engram_core::Result<()>| result.unwrap_err().to_string();
    let must_reset = |env| {
        format!(
            "environment {env} must be reset before this step: call `reset` of the environments, and then of this writer, \
             with a mask of the environments that were reset (default: all)"
        )
    };
    assert_eq!(text(recorder.step(&step)), must_reset(0));
    recorder
        .reset(&[(&bytes[..]).into()], &[true; ENVS])
        .unwrap();
    assert_eq!(
        text(recorder.step(&VectorStep {
            rewards: &[],
            ..step
        })),
        "`rewards` must have shape [3], one entry per environment; got shape [0]"
    );
    assert_eq!(
        text(recorder.step(&VectorStep {
            columns: &step.columns[..1],
            ..step
        })),
        "the step must have the columns [\"obs\", \"action\"] of 3 environments, as the first one had"
    );
    assert_eq!(
        text(recorder.reset(&[(&bytes[..4]).into()], &[true; ENVS])),
        "the observations must have the columns [\"obs\"] of 3 environments"
    );
    assert_eq!(recorder.pending_items(), 0);
    recorder.step(&step).unwrap();
    assert_eq!(text(recorder.step(&step)), must_reset(1));
    assert_eq!(recorder.pending_items(), 3);
}
