//! The result of appending many steps.

use std::ops::Range;

use crate::error::Result;

/// What a call that appends steps has done.
#[derive(Clone, Debug, PartialEq)]
pub struct AppendedSteps {
    /// Number of steps written, in a batched recorder of each environment.
    pub steps: usize,
    /// Number of items created, or the error of the first item that was not. The other items are created nevertheless.
    pub items: Result<usize>,
}

impl AppendedSteps {
    /// Calls `append` at most `max_calls` times, until all of `steps` are written, each time with those that are left. Each
    /// call writes at least one step.
    ///
    /// # Errors
    /// That of the first call. An error of a later call only ends this one: the next one, which begins with the step that
    /// caused it, returns it.
    pub fn collect(
        steps: Range<usize>,
        max_calls: usize,
        mut append: impl FnMut(Range<usize>) -> Result<Self>,
    ) -> Result<Self> {
        let mut total = append(steps.clone())?;
        for _ in 1..max_calls {
            let left = steps.start + total.steps..steps.end;
            if left.is_empty() {
                break;
            }
            let Ok(appended) = append(left) else {
                break;
            };
            total.steps += appended.steps;
            total.items = total.items.and_then(|items| Ok(items + appended.items?));
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn steps_are_appended_until_an_error_or_the_maximum_number_of_calls() {
        let error = || Error::InvalidArgument("a step".into());
        let collect = |max_calls, bad_step: usize, bad_item: usize| {
            let appended = AppendedSteps::collect(3..13, max_calls, |steps| {
                if steps.start == bad_step {
                    return Err(error());
                }
                let steps = steps.start..steps.end.min(steps.start + 4);
                Ok(AppendedSteps {
                    steps: steps.len(),
                    items: if steps.contains(&bad_item) {
                        Err(error())
                    } else {
                        Ok(2 * steps.len())
                    },
                })
            });
            appended.map(|appended| (appended.steps, appended.items))
        };
        assert_eq!(collect(1, 99, 99), Ok((4, Ok(8))));
        assert_eq!(collect(2, 99, 99), Ok((8, Ok(16))));
        assert_eq!(collect(9, 99, 99), Ok((10, Ok(20))));
        assert_eq!(collect(9, 11, 99), Ok((8, Ok(16))));
        assert_eq!(collect(9, 3, 99), Err(error()));
        assert_eq!(collect(9, 99, 5), Ok((10, Err(error()))));
    }
}
