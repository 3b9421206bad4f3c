//! Renders the cells of a terminal as a picture.

use std::fmt::Write as _;

/// Size of a cell in pixels.
const CELL: (usize, usize) = (9, 18);
const MARGIN: usize = 12;
const BACKGROUND: &str = "#1d1f21";
const FOREGROUND: &str = "#d0d0d0";
/// The used colors of a terminal, by number.
const COLOURS: [&str; 7] = [
    "#1d1f21", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2",
];

/// Renders the screen as SVG: adjacent cells with the same style are one text.
pub(crate) fn to_svg(screen: &vt100::Screen) -> String {
    let (rows, columns) = screen.size();
    let (rows, columns) = (rows.get(), columns.get());
    let (width, height) = (
        usize::from(columns) * CELL.0 + 2 * MARGIN,
        usize::from(rows) * CELL.1 + 2 * MARGIN,
    );
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"15\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n"
    );
    for row in 0..rows {
        let mut column = 0;
        while column < columns {
            let style = style_of(screen, row, column);
            let mut text = String::new();
            let begin = column;
            while column < columns && style_of(screen, row, column) == style {
                let cell = screen.cell(row, column).unwrap();
                text += if cell.has_contents() { cell.contents() } else { " " };
                column += if cell.is_wide() { 2 } else { 1 };
            }
            put_run(&mut svg, (row, begin, column - begin), style, &text);
        }
    }
    svg + "</svg>\n"
}

type Style = (vt100::Color, bool, bool);

fn style_of(screen: &vt100::Screen, row: u16, column: u16) -> Style {
    let cell = screen.cell(row, column).unwrap();
    (cell.fgcolor(), cell.bold(), cell.inverse())
}

fn put_run(svg: &mut String, (row, column, length): (u16, u16, u16), (colour, bold, inverse): Style, text: &str) {
    let (x, y) = (
        MARGIN + usize::from(column) * CELL.0,
        MARGIN + usize::from(row) * CELL.1,
    );
    let wide = usize::from(length) * CELL.0;
    let colour = match colour {
        vt100::Color::Idx(number) => COLOURS[usize::from(number)],
        _ => FOREGROUND,
    };
    if inverse {
        let high = CELL.1;
        writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{wide}\" height=\"{high}\" fill=\"{colour}\"/>"
        )
        .unwrap();
    }
    if text.trim().is_empty() {
        return;
    }
    let fill = if inverse { BACKGROUND } else { colour };
    let weight = if bold { " font-weight=\"bold\"" } else { "" };
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let base = y + 14;
    writeln!(
        svg,
        "<text x=\"{x}\" y=\"{base}\" fill=\"{fill}\"{weight} textLength=\"{wide}\" xml:space=\"preserve\">{text}</text>"
    )
    .unwrap();
}
