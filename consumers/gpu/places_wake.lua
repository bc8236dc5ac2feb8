-- Whether this is the one who may call the waker now. ARGV: prefix, ms until it may be called again. Returns 1 or 0
return redis.call('SET', P .. 'woken', '1', 'NX', 'PX', ARGV[2]) and 1 or 0
