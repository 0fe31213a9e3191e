//! Why a selection cannot become an item: cheap to make, put into words when somebody reads it.

use crate::error::{Error, Result};
use crate::schema::{Layout, Shape};

use super::StepPosition;

/// Patterns are refused on most steps of a sparse column, so no text is made here.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Refusal {
    NoColumns,
    /// Columns are the item's here...
    Empty {
        column: usize,
    },
    Squeeze {
        column: usize,
        len: u64,
    },
    TooLong {
        len: u64,
    },
    Mixed {
        column: usize,
        at: StepPosition,
        first: Shape,
        other: Shape,
    },
    Expired {
        at: StepPosition,
    },
    Future {
        at: StepPosition,
    },
    /// ...and the writer's here.
    Missing {
        column: usize,
        at: StepPosition,
    },
}

/// What the words need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) item: &'a Layout,
    pub(super) steps: &'a Layout,
    pub(super) floor: StepPosition,
    pub(super) end: StepPosition,
    pub(super) history: u64,
}

impl Refusal {
    pub(super) fn into_error(self, context: &Context<'_>) -> Error {
        let item = |column: usize| named(context.item, column);
        match self {
            Self::NoColumns => Error::InvalidArgument(
                "trajectory must not be empty: it has no columns; an item needs one or more".into(),
            ),
            Self::Empty { column } => Error::InvalidArgument(format!(
                "trajectory must not be empty: column {} selects no steps; every column needs one \
                 or more",
                item(column)
            )),
            Self::Squeeze { column, len } => Error::InvalidArgument(format!(
                "column {} of the trajectory is squeezed but selects {len} steps; a squeezed \
                 column has exactly 1",
                item(column)
            )),
            Self::TooLong { len } => Error::InvalidArgument(format!(
                "trajectory has {len} steps; a column holds at most {}",
                u32::MAX
            )),
            Self::Mixed {
                column,
                at,
                first,
                other,
            } => Error::Signature(format!(
                "column {} of the trajectory mixes cells of shape {first:?} and, at step {at}, of \
                 shape {other:?}; one item's cells have one shape",
                item(column)
            )),
            Self::Expired { at } => Error::ExpiredStep(format!(
                "trajectory asks for step {at}, which has expired; {}",
                kept(context)
            )),
            Self::Future { at } => Error::InvalidArgument(format!(
                "trajectory asks for step {at}, which was not appended yet; {}",
                kept(context)
            )),
            Self::Missing { column, at } => Error::InvalidArgument(format!(
                "trajectory asks for column {} at step {at}, which has no value there; select \
                 steps that have one",
                named(context.steps, column)
            )),
        }
    }
}

/// NaN has no place in any order.
pub(super) fn check_priority(priority: f64) -> Result<()> {
    if priority.is_nan() {
        return Err(Error::Priority(
            "priority is NaN; an item's priority is a number".into(),
        ));
    }
    Ok(())
}

/// Says which steps can be referred to.
pub(super) fn kept(context: &Context<'_>) -> String {
    let Context {
        floor,
        end,
        history,
        ..
    } = context;
    let found = match end.checked_sub(*floor) {
        None | Some(0) => "no step can be referred to".to_owned(),
        Some(_) => format!("steps {floor} to {} can be referred to", end - 1),
    };
    format!(
        "{found} (history: the newest {history}, since the last cleared episode): create items \
         sooner or raise `history`"
    )
}

fn named(layout: &Layout, column: usize) -> String {
    match layout.names.get(column) {
        Some(name) => format!("`{name}`"),
        None => column.to_string(),
    }
}
