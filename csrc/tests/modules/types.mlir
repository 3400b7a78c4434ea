// Every element type that crosses the interface, read as f32 by the program; and results of each.
module @types {
  func.func @mix(%f32: tensor<8xf32>, %f16: tensor<8xf16>, %bf16: tensor<8xbf16>,
                 %i8: tensor<8xi8>, %u8: tensor<8xui8>, %i4: tensor<8xi4>, %u4: tensor<8xui4>,
                 %i32: tensor<8xi32>, %u32: tensor<8xui32>)
      -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>,
          tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
    %0 = stablehlo.add %f32, %f32 : tensor<8xf32>
    %1 = stablehlo.convert %f16 : (tensor<8xf16>) -> tensor<8xf32>
    %2 = stablehlo.convert %bf16 : (tensor<8xbf16>) -> tensor<8xf32>
    %3 = stablehlo.convert %i8 : (tensor<8xi8>) -> tensor<8xf32>
    %4 = stablehlo.convert %u8 : (tensor<8xui8>) -> tensor<8xf32>
    %5 = stablehlo.convert %i4 : (tensor<8xi4>) -> tensor<8xf32>
    %6 = stablehlo.convert %u4 : (tensor<8xui4>) -> tensor<8xf32>
    %7 = stablehlo.convert %i32 : (tensor<8xi32>) -> tensor<8xf32>
    %8 = stablehlo.convert %u32 : (tensor<8xui32>) -> tensor<8xf32>
    return %0, %1, %2, %3, %4, %5, %6, %7, %8
        : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>,
          tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
  }
  func.func @narrow(%x: tensor<8xf32>)
      -> (tensor<8xf16>, tensor<8xbf16>, tensor<8xi8>, tensor<8xui8>, tensor<8xi32>, tensor<8xui32>) {
    %0 = stablehlo.convert %x : (tensor<8xf32>) -> tensor<8xf16>
    %1 = stablehlo.convert %x : (tensor<8xf32>) -> tensor<8xbf16>
    %2 = stablehlo.convert %x : (tensor<8xf32>) -> tensor<8xi8>
    %3 = stablehlo.convert %x : (tensor<8xf32>) -> tensor<8xui8>
    %4 = stablehlo.convert %x : (tensor<8xf32>) -> tensor<8xi32>
    %5 = stablehlo.convert %x : (tensor<8xf32>) -> tensor<8xui32>
    return %0, %1, %2, %3, %4, %5
        : tensor<8xf16>, tensor<8xbf16>, tensor<8xi8>, tensor<8xui8>, tensor<8xi32>, tensor<8xui32>
  }
}
