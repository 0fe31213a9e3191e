//! Which items a vector recorder creates from the transitions of an episode.

use std::sync::Arc;

use super::super::split_window::to_u32;
use super::returns::Returns;
use crate::error::{Error, Result};
use crate::schema::{ActualColumn, Layout, Schema};
use crate::trajectory::SpanColumn;
use crate::writer::pattern::{Pattern, PatternColumn};

/// What a sequence that is cut short by the end of its episode becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtEnd {
    /// No item.
    Drop,
    /// A shorter item.
    Cut,
    /// An item of full length, padded with zeros.
    Pad,
}

/// The form of the items of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ItemKind {
    /// An item for each transition: it and up to `n_step - 1` that follow.
    Transitions {
        /// Maximum number of transitions of an item. At least 1.
        n_step: u64,
        /// Discount per transition.
        discount: f64,
    },
    /// Items of consecutive transitions.
    Sequences {
        /// Number of transitions of an item. At least 1.
        length: u64,
        /// Number of transitions from the start of an item to the start of the next. At least 1.
        period: u64,
        /// What happens at the end of an episode to the first sequence that does not fit.
        at_end: AtEnd,
    },
}

/// Where the cells of an item's column are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemSource {
    /// This column of the observations. `k` transitions have `k + 1` of them.
    Observation(usize),
    /// This column of those that the caller gives for each transition, such as the action.
    Step(usize),
    /// The reward, as float32.
    Reward,
    /// True if the transition ended the episode in a terminal state.
    Terminated,
    /// True if the transition ended the episode in any other way.
    Truncated,
    /// True; false in padding.
    Valid,
    /// The discounted sum of the rewards of an item of [`ItemKind::Transitions`], as float32.
    Return,
    /// The discount of the value of the last observation of an item of [`ItemKind::Transitions`], as float32.
    Discount,
}

/// Which of the cells of a source an item's column has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first one, without a time axis.
    First,
    /// The last one, without a time axis.
    Last,
    /// All of them.
    All,
}

/// A column of the items of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemColumn {
    /// Where its cells are from.
    pub source: ItemSource,
    /// Which of them it has.
    pub part: Part,
}

/// Describes items, and their table.
#[derive(Clone, Debug)]
pub struct ItemRule {
    /// The caller's number of the table.
    pub table: u32,
    /// Priority of the items.
    pub priority: f64,
    /// Names and nesting of the items' columns.
    pub layout: Arc<Layout>,
    /// The columns of the items.
    pub columns: Box<[ItemColumn]>,
    /// The form of the items.
    pub kind: ItemKind,
}

/// A column of an item, in terms of the recorder's rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleColumn {
    /// Number of the column of the rows.
    pub(super) row_column: usize,
    pub(super) part: Part,
    /// True for an observation: the row of a transition has the observation that follows it.
    pub(super) is_observation: bool,
    /// True for a return or its discount: the row of the last transition of a full window has it.
    pub(super) is_return: bool,
}

/// A rule bound to the columns of the recorder's rows.
#[derive(Debug)]
pub(super) struct BoundRule {
    /// Describes items of full length, in terms of rows.
    pub(super) full: Pattern,
    pub(super) priority: f64,
    pub(super) columns: Box<[RuleColumn]>,
    /// The columns of each item if all of them have a single cell: they are then the same for all items.
    pub(super) single_cells: Option<Arc<[SpanColumn]>>,
    /// Number of transitions of an item of full length.
    pub(super) length: u64,
    /// Number of transitions from the start of an item to the start of the next.
    pub(super) period: u64,
    /// `None` for transitions, whose last items are shorter.
    pub(super) at_end: Option<AtEnd>,
    /// For transitions: the sums of rewards, and the columns of the rows for the return and the discount.
    pub(super) returns: Option<(Returns, [usize; 2])>,
}

impl BoundRule {
    /// Binds a rule. `row_column` returns the column of the rows for a source, and `return_columns` the columns of the
    /// rows for the return and the discount of this rule.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a kind whose numbers are out of range, and the errors of [`Pattern::new`].
    pub(super) fn new(
        rule: &ItemRule,
        envs: usize,
        schema: &Schema,
        row_column: impl Fn(ItemSource) -> usize,
        return_columns: [usize; 2],
    ) -> Result<Self> {
        let (length, period, at_end, sums) = match rule.kind {
            ItemKind::Transitions { n_step, discount } => {
                check_length("n_step", n_step)?;
                let sums = Returns::new(n_step, discount, envs);
                (n_step, 1, None, Some((sums, return_columns)))
            }
            ItemKind::Sequences {
                length,
                period,
                at_end,
            } => {
                check_length("length", length)?;
                check_length("period", period)?;
                (length, period, Some(at_end), None)
            }
        };
        let columns: Box<[RuleColumn]> = (rule.columns.iter())
            .map(|column| RuleColumn {
                row_column: row_column(column.source),
                part: column.part,
                is_observation: matches!(column.source, ItemSource::Observation(_)),
                is_return: matches!(column.source, ItemSource::Return | ItemSource::Discount),
            })
            .collect();
        let has_single_cells = columns.iter().all(|column| column.part != Part::All);
        let single_cells = (0..columns.len() as u64).map(|number| SpanColumn {
            first_slice: to_u32(number),
            len: 1,
            squeeze: true,
        });
        let length_in_rows = i64::try_from(length).unwrap_or(i64::MAX);
        let slices = columns.iter().map(|column| column.slice(length_in_rows));
        let mut full = Pattern::new(
            rule.table,
            Arc::clone(&rule.layout),
            slices.collect(),
            Box::default(),
            rule.priority,
        )?;
        full.bind(schema);
        Ok(Self {
            full,
            priority: rule.priority,
            single_cells: has_single_cells.then(|| single_cells.collect()),
            columns,
            length,
            period,
            at_end,
            returns: sums,
        })
    }

    /// The caller's number of the table.
    pub(super) fn table(&self) -> u32 {
        self.full.table()
    }

    /// True if the item of full length that ends with transition number `count` of an episode, counted from 1, is due.
    pub(super) fn is_due(&self, count: u64) -> bool {
        // Most rules have period 1, which needs no division.
        count >= self.length
            && (self.period == 1 || (count - self.length).is_multiple_of(self.period))
    }

    /// Number of transitions in the sequence that the end of an episode of `count` transitions cuts short: the first
    /// sequence that begins in the episode and does not fit. 0 if there is none, or if a sequence of full length ends
    /// with the episode, because that one includes these transitions.
    pub(super) fn cut_transitions(&self, count: u64) -> u64 {
        let Some(beyond) = count.checked_sub(self.length) else {
            return count;
        };
        if beyond.is_multiple_of(self.period) {
            return 0;
        }
        count.saturating_sub((beyond / self.period + 1) * self.period)
    }

    /// Returns the columns of the items of full length, or with `cut` of the shortest ones, to be checked against a
    /// table's signature.
    pub(super) fn item_columns<'a>(
        &'a self,
        schema: &'a Schema,
        cut: bool,
    ) -> impl Iterator<Item = ActualColumn<'a>> + Clone + 'a {
        let columns = self.full.item_columns(schema).zip(&self.columns);
        columns.map(
            move |(column, RuleColumn { is_observation, .. })| ActualColumn {
                len: column.len.map(|len| {
                    if cut {
                        1 + usize::from(*is_observation)
                    } else {
                        len
                    }
                }),
                ..column
            },
        )
    }
}

impl RuleColumn {
    /// Returns the slice of rows of an item of `length` transitions, the last of which is in the newest row.
    fn slice(&self, length: i64) -> PatternColumn {
        let start = -length - i64::from(self.is_observation);
        let (start, stop) = match self.part {
            Part::First => (start, start + 1),
            Part::Last => (-1, 0),
            Part::All => (start, 0),
        };
        PatternColumn {
            source: self.row_column,
            start,
            stop,
            step: 1,
            squeeze: self.part != Part::All,
        }
    }
}

fn check_length(name: &str, length: u64) -> Result<()> {
    if length == 0 || length >= u64::from(u32::MAX) {
        return Err(Error::InvalidArgument(format!(
            "`{name}` must be from 1 to {}; got {length}",
            u32::MAX - 1
        )));
    }
    Ok(())
}
