package main

import "context"

func growth(context.Context, options) error { return nil }
