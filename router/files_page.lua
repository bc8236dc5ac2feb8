-- A page of files. ARGV: prefix, after id ('' is the start), most, purpose ('' is any), asc | desc
-- Returns {{id, about, created, expires, bytes}, ...}
local most, now, page, looked = tonumber(ARGV[3]), now_ms(), {}, 0
local up, from = ARGV[5] == 'asc', ARGV[2]
while #page < most and looked < 20000 do
  local ids
  if up then
    ids = redis.call('ZRANGEBYLEX', P .. 'files', from == '' and '-' or '(' .. from, '+', 'LIMIT', 0, 100)
  else
    ids = redis.call('ZREVRANGEBYLEX', P .. 'files', from == '' and '+' or '(' .. from, '-', 'LIMIT', 0, 100)
  end
  if #ids == 0 then break end
  for _, id in ipairs(ids) do
    looked, from = looked + 1, id
    local h = redis.call('HMGET', P .. 'file:' .. id, 'about', 'created', 'expires', 'bytes')
    if h[1] and tonumber(h[3]) > now and (ARGV[4] == '' or cjson.decode(h[1]).purpose == ARGV[4]) then
      page[#page + 1] = {id, h[1], h[2], h[3], h[4]}
      if #page == most then break end
    end
  end
end
return page
