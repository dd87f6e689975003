//! Colours of all pictures, which can be distinguished with any colour vision.

/// Colours are in the rules themselves: only browsers know CSS variables.
pub(crate) fn style() -> String {
    let of = |colours: &[(&str, &str)]| {
        let rules = RULES.to_owned();
        colours.iter().fold(rules, |rules, (name, value)| rules.replace(name, value))
    };
    format!("{}@media(prefers-color-scheme:dark){{{}}}", of(LIGHT), of(DARK))
}

/// Lines differ in lightness, so that any colour vision can distinguish them.
const LIGHT: &[(&str, &str)] = &[
    ("$fg", "#222"),
    ("$dim", "#666"),
    ("$grid", "#e2e2e2"),
    ("$bg", "#fff"),
    ("$data", "#4767bf"),
    ("$late", "#7d3bef"),
    ("$again", "#9f330d"),
    ("$ahead", "#0da559"),
    ("$wait", "#ae8c11"),
    ("$ack", "#333"),
    ("$win", "#8a8a8a"),
    ("$sack", "#680c68"),
    ("$fill", "#cfe3f1"),
];

const DARK: &[(&str, &str)] = &[
    ("$fg", "#ddd"),
    ("$dim", "#a0a0a0"),
    ("$grid", "#343434"),
    ("$bg", "#161616"),
    ("$data", "#91b8f3"),
    ("$late", "#6d39ef"),
    ("$again", "#c54933"),
    ("$ahead", "#1bec85"),
    ("$wait", "#ecbc27"),
    ("$ack", "#dedede"),
    ("$win", "#8a8a8a"),
    ("$sack", "#9a3d96"),
    ("$fill", "#17384d"),
];

const RULES: &str = "\
svg.p{background:$bg;max-width:100%;height:auto;font:12px system-ui,sans-serif}
svg.p text{fill:$fg}svg.p .dim{fill:$dim}svg.p .grid{stroke:$grid}
svg.p path,svg.p .grid,svg.p .axis{fill:none;stroke-linecap:square}svg.p .axis{stroke:$dim}
svg.p .data{stroke:$data;stroke-width:1.6}svg.p .late{stroke:$late;stroke-width:2.4}
svg.p .again{stroke:$again;stroke-width:3}svg.p .ahead{stroke:$ahead;stroke-width:3}
svg.p .wait{stroke:$wait;stroke-width:2}svg.p .ack{stroke:$ack;stroke-width:1.2}
svg.p .win{stroke:$win;stroke-dasharray:5 3}svg.p .sack{stroke:$sack;stroke-width:2}
svg.p .start{stroke:$fg;stroke-width:.8}svg.p .wrong{stroke:$again;stroke-width:2.5}
svg.p .end{stroke:$fg;stroke-width:2.5}svg.p .marker{stroke:$dim;stroke-width:.8}svg.p .band{fill:$fill;stroke:none}
svg.p .pause{fill:$grid;fill-opacity:.6}svg.p rect.data{fill:$data;stroke:none}svg.p rect.again{fill:$again;stroke:none}
svg.p rect.wait{fill:$wait;stroke:none}svg.p rect.ahead{fill:$ahead;stroke:none}
svg.p .f-data{fill:$data}svg.p .f-again{fill:$again}svg.p .f-wait{fill:$wait}svg.p .f-ahead{fill:$ahead}svg.p .f-fill{fill:$fill}
svg.p .bar{stroke:$data;stroke-width:3}svg.p .pale{fill-opacity:.7}
";

#[cfg(test)]
mod tests {
    //! Colours as seen without one kind of cone: Machado, Oliveira and Fernandes (2009), "A
    //! Physiologically-based Model for Simulation of Color Vision Deficiency", at full severity.

    use super::*;

    type Matrix = [[f64; 3]; 3];

    const VISIONS: [(&str, Matrix); 4] = [
        ("all cones", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        (
            "protanopia",
            [
                [0.152_286, 1.052_583, -0.204_868],
                [0.114_503, 0.786_281, 0.099_216],
                [-0.003_882, -0.048_116, 1.051_998],
            ],
        ),
        (
            "deuteranopia",
            [
                [0.367_322, 0.860_646, -0.227_968],
                [0.280_085, 0.672_501, 0.047_413],
                [-0.011_820, 0.042_940, 0.968_881],
            ],
        ),
        (
            "tritanopia",
            [
                [1.255_528, -0.076_749, -0.178_779],
                [-0.078_411, 0.930_809, 0.147_602],
                [0.004_733, 0.691_367, 0.303_900],
            ],
        ),
    ];
    /// Colours of lines and marks in one picture.
    const MARKS: [&str; 8] =
        ["$data", "$late", "$again", "$ahead", "$wait", "$ack", "$win", "$sack"];
    /// Difference in CIE 1976 (L*, a*, b*): 2 is just noticed side by side.
    const DIFFERENCE_MIN: f64 = 20.0;
    /// WCAG 2.2, 1.4.11: graphical objects against adjacent colours.
    const CONTRAST_MIN: f64 = 3.0;

    /// Linear red, green and blue of sRGB (IEC 61966-2-1).
    fn linear(colours: &[(&str, &str)], name: &str) -> [f64; 3] {
        let (_, value) = colours.iter().find(|(known, _)| *known == name).unwrap();
        let digits: Vec<u32> = value[1..].chars().map(|one| one.to_digit(16).unwrap()).collect();
        let at = |index: usize| match digits.len() {
            3 => digits[index] * 17,
            _ => digits[index * 2] * 16 + digits[index * 2 + 1],
        };
        [0, 1, 2].map(|index| {
            let part = f64::from(at(index)) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn times(matrix: &Matrix, colour: [f64; 3]) -> [f64; 3] {
        matrix.map(|row| row.iter().zip(colour).map(|(a, b)| a * b).sum::<f64>().clamp(0.0, 1.0))
    }

    /// CIE 1976 (L*, a*, b*) under D65.
    fn lab(colour: [f64; 3]) -> [f64; 3] {
        let xyz = times(
            &[[0.4338, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.8728]],
            colour,
        );
        let [x, y, z] = xyz.map(|part| match part {
            part if part > 0.008_856 => part.cbrt(),
            part => 7.787 * part + 16.0 / 116.0,
        });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    fn luminance(colour: [f64; 3]) -> f64 {
        0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]
    }

    #[test]
    fn marks_are_distinguishable_with_any_colour_vision() {
        for (background, colours) in [("light", LIGHT), ("dark", DARK)] {
            for (vision, matrix) in &VISIONS {
                let seen = MARKS.map(|name| (name, lab(times(matrix, linear(colours, name)))));
                for (index, (one, at)) in seen.iter().enumerate() {
                    for (other, there) in &seen[..index] {
                        let squares = at.iter().zip(there).map(|(a, b)| (a - b).powi(2));
                        let difference = squares.sum::<f64>().sqrt();
                        assert!(
                            difference >= DIFFERENCE_MIN,
                            "{background}, {vision}: {one} and {other} differ by {difference:.1}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn marks_stand_out_from_the_background() {
        for (background, colours) in [("light", LIGHT), ("dark", DARK)] {
            let behind = luminance(linear(colours, "$bg"));
            for name in MARKS {
                let mark = luminance(linear(colours, name));
                let contrast = (mark.max(behind) + 0.05) / (mark.min(behind) + 0.05);
                assert!(contrast >= CONTRAST_MIN, "{background}: {name} has {contrast:.2}");
            }
        }
    }
}
