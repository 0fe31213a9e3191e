//! Names of columns in error texts. Data that is one array has one column, whose name is empty.

/// Names a column of `whole`, which is a step, a pattern or an item. For data that is one array, returns `whole`.
pub(super) fn column_of(whole: &str, name: &str) -> String {
    if name.is_empty() {
        whole.into()
    } else {
        format!("column `{name}` of {whole}")
    }
}

/// Names a column of a writer. For data that is one array, returns "the data".
pub(super) fn column_or_data(name: &str) -> String {
    if name.is_empty() {
        "the data".into()
    } else {
        format!("column `{name}`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_without_a_name_is_all_of_the_data() {
        assert_eq!(column_of("the step", "obs"), "column `obs` of the step");
        assert_eq!(column_of("the step", ""), "the step");
        assert_eq!(column_or_data("obs"), "column `obs`");
        assert_eq!(column_or_data(""), "the data");
    }
}
