//! Errors of selections that cannot become an item.

use crate::error::{Error, Result};
use crate::schema::{Layout, Shape};
use crate::text::{column_of, count, describe_column};

use super::StepPosition;

/// Why a selection cannot become an item. [`Self::into_error`] adds the text: if a column often lacks values, a
/// pattern's selection fails at most steps, so the error itself must be cheap.
///
/// `column` is a column of the item, except in [`Self::Expired`], [`Self::Future`] and [`Self::Missing`], where it is a
/// column of the writer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SelectionError {
    /// The selection has no columns.
    NoColumns,
    /// A column selects no steps.
    Empty { column: usize },
    /// A squeezed column does not select exactly one step.
    Squeeze { column: usize, len: u64 },
    /// A column selects more steps than 32 bits can count.
    TooLong { column: usize, len: u64 },
    /// The cells of a column differ in shape.
    Mixed {
        column: usize,
        position: StepPosition,
        first: Shape,
        other: Shape,
    },
    /// The step is no longer retained, or was cleared at the end of its episode.
    Expired {
        column: usize,
        position: StepPosition,
    },
    /// The step was not appended yet.
    Future {
        column: usize,
        position: StepPosition,
    },
    /// The `len` newest steps were selected, but the writer does not have that many.
    TooFewSteps { len: u64 },
    /// The column has no value at this step.
    Missing {
        column: usize,
        position: StepPosition,
    },
}

/// What error texts need to know about the item and its writer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorContext<'a> {
    /// Layout of the item; `None` if a cell is read without creating an item.
    pub(super) item: Option<&'a Layout>,
    /// Layout of the writer's steps.
    pub(super) steps: &'a Layout,
    /// First step that items may refer to.
    pub(super) first_available: StepPosition,
    /// End of the available steps, exclusive.
    pub(super) end: StepPosition,
    /// End of the steps that the end of an episode cleared, exclusive; 0 if none were.
    pub(super) cleared: StepPosition,
    /// First step of the current episode.
    pub(super) episode_start: StepPosition,
    /// The option `history`.
    pub(super) history: u64,
}

impl SelectionError {
    /// Returns the error with its text.
    pub(super) fn into_error(self, context: &ErrorContext<'_>) -> Error {
        let (refers_to, use_it) = match context.item {
            Some(_) => ("the trajectory refers to", "create items"),
            None => ("cannot read", "read it"),
        };
        let item = |column: usize| {
            let name = context.item.map_or("", |item| item.name(column));
            column_of("the trajectory", name)
        };
        let refers_to = |column: usize, position: StepPosition| {
            format!(
                "{refers_to} {} at step {position} of this writer (counted from 0 over all \
                 episodes)",
                describe_column(context.steps.name(column))
            )
        };
        let history = context.history;
        match self {
            Self::NoColumns => {
                Error::InvalidArgument("the trajectory has no columns; select at least one".into())
            }
            Self::Empty { column } => Error::InvalidArgument(format!(
                "{} selects no steps; select at least one",
                item(column)
            )),
            Self::Squeeze { column, len } => Error::InvalidArgument(format!(
                "{} is squeezed but selects {len} steps; a squeezed \
                 column must select exactly 1",
                item(column)
            )),
            Self::TooLong { column, len } => Error::InvalidArgument(format!(
                "{} selects {len} steps; at most {} are allowed",
                item(column),
                u32::MAX
            )),
            Self::Mixed {
                column,
                position,
                first,
                other,
            } => Error::Signature(format!(
                "{} has cells of different shapes, {first:?} and, at step {position} of this writer, \
                 {other:?}; within one item, a column's cells must have the same shape",
                item(column)
            )),
            Self::Expired { column, position } if position < context.cleared => {
                Error::ExpiredStep(format!(
                    "{}, which was cleared at the end of its episode; {}; {use_it} before the \
                     episode ends, or end it with `clear=False`",
                    refers_to(column, position),
                    describe_available_steps(context)
                ))
            }
            Self::Expired { column, position }
                if position >= context.end.saturating_sub(history) =>
            {
                Error::ExpiredStep(format!(
                    "{}, which had expired before `history` was raised to {history}; {}; select newer steps",
                    refers_to(column, position),
                    describe_available_steps(context)
                ))
            }
            Self::Expired { column, position } => Error::ExpiredStep(format!(
                "{}, which has expired: the writer retains only the newest {} (`history`); {}; \
                 {use_it} earlier or raise `history`",
                refers_to(column, position),
                count(history, "step"),
                describe_available_steps(context)
            )),
            Self::Future { column, position } => Error::InvalidArgument(format!(
                "{}, which was not appended yet; {}; append it first",
                refers_to(column, position),
                describe_available_steps(context)
            )),
            Self::TooFewSteps { len } => too_few_steps(len, context),
            Self::Missing { column, position } => Error::InvalidArgument(format!(
                "{}, where it has no value; select only steps with a value",
                refers_to(column, position)
            )),
        }
    }
}

/// The error of a selection of the newest `len` steps, of which fewer are available.
fn too_few_steps(len: u64, context: &ErrorContext<'_>) -> Error {
    let history = context.history;
    let appended = context.end - context.cleared;
    if appended >= len && len <= history {
        return Error::ExpiredStep(format!(
            "`num_steps` is {len}, but older steps had expired before `history` was raised to {history}; {}; \
             append more steps first or select fewer",
            describe_available_steps(context)
        ));
    }
    if appended >= len {
        return Error::ExpiredStep(format!(
            "`num_steps` is {len}, but the writer retains only the newest {} (`history`); raise \
             `history` to at least {len} or select fewer steps",
            count(history, "step")
        ));
    }
    let period = if context.cleared == context.episode_start {
        "in this episode"
    } else if context.cleared == 0 {
        "so far"
    } else {
        "since the history was last cleared"
    };
    let steps_were = if appended == 1 {
        "step was"
    } else {
        "steps were"
    };
    let and_raise = if len > history {
        format!(" and raise `history`, which is {history}, to at least {len}")
    } else {
        String::new()
    };
    Error::InvalidArgument(format!(
        "`num_steps` is {len}, but only {appended} {steps_were} appended {period}; append more steps \
         first{and_raise}, or select fewer"
    ))
}

/// Rejects NaN, which cannot be ordered.
pub(super) fn check_priority(priority: f64) -> Result<()> {
    if priority.is_nan() {
        return Err(Error::Priority(
            "`priority` must be a number; got NaN".into(),
        ));
    }
    Ok(())
}

fn describe_available_steps(context: &ErrorContext<'_>) -> String {
    let ErrorContext {
        first_available,
        end,
        ..
    } = context;
    match end.checked_sub(*first_available) {
        None | Some(0) => "no steps are available".into(),
        Some(1) => format!("only step {first_available} is available"),
        Some(_) => format!("steps {first_available} to {} are available", end - 1),
    }
}
