// Scalars in and out.
module @scalars {
  func.func @add(%a: i32, %b: i64, %c: f32) -> (i32, i64, f32) {
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i64
    %half = arith.constant 0.5 : f32
    %0 = arith.addi %a, %one : i32
    %1 = arith.addi %b, %two : i64
    %2 = arith.addf %c, %half : f32
    return %0, %1, %2 : i32, i64, f32
  }
}
