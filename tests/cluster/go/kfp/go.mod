module kfpshape

go 1.26.0
